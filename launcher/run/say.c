/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "impl.h"

enum { SAY_MS = 2000 };

void launch_say(const char *fmt, ...)
{
    char text[2 * FSDP_ERR_TEXT_NBYTES] = "fsdp-launch: ";
    size_t len = strlen(text);
    va_list ap;
    va_start(ap, fmt);
    int more = vsnprintf(text + len, sizeof text - len - 1, fmt, ap);
    va_end(ap);
    len += more < 0 ? 0 : (size_t)more;
    len = len < sizeof text - 1 ? len : sizeof text - 2;
    text[len++] = '\n';
    fflush(stderr);
    /* A reader that has stalled must not keep the job from its end. */
    struct pollfd pf = {STDERR_FILENO, POLLOUT, 0};
    if (poll(&pf, 1, SAY_MS) <= 0)
        return;
    ssize_t done = write(STDERR_FILENO, text, len);
    (void)done;
}

void launch_say_not_run(const char *program, int why)
{
    if (why == ENOENT && !strchr(program, '/') && !access(program, X_OK))
        launch_say("%s: not found in PATH; the one in this folder is ./%s", program, program);
    else
        launch_say("%s: %s", program, strerror(why));
}
