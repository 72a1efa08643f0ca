/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "terminal.h"

/* Another screen, so that what was on this one comes back; no cursor. */
#define ENTER "\033[?1049h\033[?25l\033[H\033[2J"
#define LEAVE "\033[?25h\033[?1049l"

static struct {
    bool is_open, has_keys;
    struct termios before;
    int pipe[2]; /* a byte wakes the wait for keys */
} terminal = {.pipe = {-1, -1}};
static volatile sig_atomic_t ended_by, is_resized, is_suspended;

static const int ending[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
enum { NENDING = sizeof ending / sizeof ending[0] };

static void on_signal(int signal)
{
    const int saved = errno;

    if (signal == SIGWINCH || signal == SIGCONT)
        is_resized = 1;
    else if (signal == SIGTSTP)
        is_suspended = 1;
    else
        ended_by = signal;
    if (terminal.pipe[1] >= 0 && write(terminal.pipe[1], "!", 1) < 0)
        errno = 0; /* full: it wakes up anyhow */
    errno = saved;
}

void terminal_size(int *columns, int *lines)
{
    const char *asked = getenv("COLUMNS");
    struct winsize size;

    *columns = asked && atoi(asked) > 0 ? atoi(asked) : 80;
    *lines = 24;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
        *columns = size.ws_col;
        *lines = size.ws_row;
    }
}

static bool put_text(const char *text)
{
    size_t nbytes = strlen(text);

    while (nbytes) {
        const ssize_t done = write(STDOUT_FILENO, text, nbytes);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return false;
        text += done;
        nbytes -= (size_t)done;
    }
    return true;
}

/* Keys come one by one and unseen; Ctrl-C stays a signal. */
static bool take_terminal(void)
{
    struct termios now = terminal.before;

    now.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    now.c_cc[VMIN] = 1;
    now.c_cc[VTIME] = 0;
    if (terminal.has_keys && tcsetattr(STDIN_FILENO, TCSANOW, &now) != 0)
        return false;
    return put_text(ENTER);
}

static void give_back(void)
{
    put_text(LEAVE);
    if (terminal.has_keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &terminal.before);
}

static void catch_signals(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;

    sigemptyset(&action.sa_mask);
    for (int i = 0; i < NENDING; i++) /* what nohup ignores stays ignored */
        if (sigaction(ending[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(ending[i], &action, NULL);
    sigaction(SIGWINCH, &action, NULL);
    sigaction(SIGTSTP, &action, NULL);
    sigaction(SIGCONT, &action, NULL);
}

int terminal_open(struct fsdp_err *err)
{
    terminal.has_keys = tcgetattr(STDIN_FILENO, &terminal.before) == 0;
    if (pipe2(terminal.pipe, O_CLOEXEC | O_NONBLOCK) != 0)
        return fsdp_err_sys(err, errno, "a pipe for signals");
    catch_signals(on_signal);
    terminal.is_open = true;
    if (take_terminal())
        return FSDP_OK;
    const int why = errno;
    terminal_close();
    return fsdp_err_sys(err, why, "the terminal");
}

void terminal_close(void)
{
    if (!terminal.is_open)
        return;
    give_back();
    terminal.is_open = false;
    catch_signals(SIG_DFL);
    close(terminal.pipe[0]);
    close(terminal.pipe[1]);
    terminal.pipe[0] = terminal.pipe[1] = -1;
}

int terminal_signal(void)
{
    return ended_by;
}

/* Each line is replaced in its place, and all of them at once, so that nothing flickers. */
bool terminal_draw(const char *text, int lines)
{
    size_t nbytes;
    char *frame = NULL;
    FILE *to = open_memstream(&frame, &nbytes);

    if (!to)
        return true; /* without memory this frame is left out */
    fputs("\033[H", to);
    for (int i = 0; i < lines; i++) {
        const size_t len = strcspn(text, "\n");
        fprintf(to, "%.*s\033[K%s", (int)len, text, i + 1 < lines ? "\r\n" : "\033[J");
        text += len + (text[len] == '\n');
    }
    const bool good = fclose(to) == 0 && put_text(frame);
    free(frame);
    return good;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static const struct {
    const char *bytes;
    enum terminal_key key;
} keys[] = {
    {"\033[A", KEY_UP},
    {"\033OA", KEY_UP},
    {"k", KEY_UP},
    {"\033[B", KEY_DOWN},
    {"\033OB", KEY_DOWN},
    {"j", KEY_DOWN},
    {"\033[5~", KEY_PAGE_UP},
    {"\033[6~", KEY_PAGE_DOWN},
    {"g", KEY_FIRST},
    {"G", KEY_LAST},
    {"\033[H", KEY_FIRST},
    {"\033[F", KEY_LAST},
    {"\r", KEY_ENTER},
    {"\n", KEY_ENTER},
    {"\033[C", KEY_ENTER},
    {"\033[D", KEY_BACK},
    {"\177", KEY_BACK},
    {"s", KEY_SORT},
    {"r", KEY_AGAIN},
    {"q", KEY_QUIT},
    {"Q", KEY_QUIT},
    {"\014", KEY_REDRAW},
    {"\004", KEY_QUIT},
};
enum { NKEYS = sizeof keys / sizeof keys[0], MAX_PENDING = 64 };

static struct {
    char bytes[MAX_PENDING];
    size_t nbytes;
} pending;

static void drop_pending(size_t nbytes)
{
    memmove(pending.bytes, pending.bytes + nbytes, pending.nbytes -= nbytes);
}

/* An escape alone is a key; the sequences of unknown keys are skipped as a whole. */
static enum terminal_key next_pending(void)
{
    for (int i = 0; i < NKEYS; i++) {
        const size_t nbytes = strlen(keys[i].bytes);
        if (pending.nbytes >= nbytes && !memcmp(pending.bytes, keys[i].bytes, nbytes)) {
            drop_pending(nbytes);
            return keys[i].key;
        }
    }
    const bool is_escape = pending.bytes[0] == '\033', is_alone = pending.nbytes == 1;
    size_t nbytes = 1;
    if (is_escape && !is_alone && (pending.bytes[1] == '[' || pending.bytes[1] == 'O'))
        for (nbytes = 2; nbytes < pending.nbytes; nbytes++)
            if (pending.bytes[nbytes] >= '@' && pending.bytes[nbytes] <= '~') {
                nbytes++;
                break;
            }
    drop_pending(nbytes);
    return is_escape && nbytes == 1 ? KEY_BACK : KEY_NONE;
}

static enum terminal_key suspend(void)
{
    is_suspended = 0;
    give_back();
    raise(SIGSTOP);
    return take_terminal() ? KEY_REDRAW : KEY_GONE;
}

enum terminal_key terminal_key(double seconds)
{
    struct pollfd from[] = {{.fd = terminal.pipe[0], .events = POLLIN},
                            {.fd = terminal.has_keys ? STDIN_FILENO : -1, .events = POLLIN}};
    char bytes[16];

    if (pending.nbytes)
        return next_pending();
    if (!ended_by && !is_resized && !is_suspended &&
        poll(from, 2, seconds < 0 ? 0 : (int)(1000 * seconds) + 1) < 0 && errno != EINTR)
        return KEY_GONE;
    while (read(terminal.pipe[0], bytes, sizeof bytes) > 0)
        ;
    if (ended_by)
        return KEY_SIGNAL;
    if (is_suspended)
        return suspend();
    if (is_resized) {
        is_resized = 0;
        return KEY_REDRAW;
    }
    if (from[1].revents & (POLLIN | POLLHUP | POLLERR)) {
        const ssize_t nbytes = read(STDIN_FILENO, pending.bytes, MAX_PENDING);
        if (nbytes <= 0)
            return nbytes < 0 && (errno == EINTR || errno == EAGAIN) ? KEY_NONE : KEY_GONE;
        pending.nbytes = (size_t)nbytes;
        return next_pending();
    }
    return KEY_NONE;
}
