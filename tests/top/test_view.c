/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsdp-top in a terminal: what the screen shows after keys, sizes and signals, and that the
 * terminal is given back. A small terminal stands behind a real pty: it knows the sequences that
 * fsdp-top uses, and counts others as errors.
 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
#include <utmp.h>

#include "tap.h"
#include "train/report/status.h"

enum { MAX_COLUMNS = 220, MAX_LINES = 60, PATIENCE_S = 30 };

/* ---- a terminal ------------------------------------------------------------------------------ */

static struct {
    char cell[MAX_LINES][MAX_COLUMNS][5];
    int columns, lines, column, line;
    bool is_other, is_hidden; /* the other screen is shown; the cursor is not */
    int nunknown, ncolored;
    char escape[32];
    size_t nescape;
    int fd;
    pid_t pid;
    struct termios before;
} t;

static void clear(int from_line, int from_column, int to_line)
{
    for (int line = from_line; line < to_line; line++)
        for (int column = line == from_line ? from_column : 0; column < MAX_COLUMNS; column++)
            strcpy(t.cell[line][column], " ");
}

/* The last byte of a control sequence has come. */
static void obey(const char *sequence, char end)
{
    int line = 1, column = 1;

    if (!strcmp(sequence, "?1049"))
        t.is_other = end == 'h';
    else if (!strcmp(sequence, "?25"))
        t.is_hidden = end == 'l';
    else if (end == 'm')
        t.ncolored++;
    else if (end == 'H') {
        sscanf(sequence, "%d;%d", &line, &column);
        t.line = line - 1;
        t.column = column - 1;
    } else if (end == 'K' && !*sequence)
        clear(t.line, t.column, t.line + 1);
    else if (end == 'J' && !strcmp(sequence, "2"))
        clear(0, 0, MAX_LINES);
    else if (end == 'J' && !*sequence)
        clear(t.line, t.column, MAX_LINES);
    else
        t.nunknown++;
}

static void take_byte(unsigned char c)
{
    if (t.nescape) {
        t.escape[t.nescape++] = (char)c;
        if (t.nescape == 2 && c != '[') {
            t.nunknown++;
            t.nescape = 0;
        } else if (t.nescape > 2 && c >= '@' && c <= '~') {
            t.escape[t.nescape - 1] = 0;
            obey(t.escape + 2, (char)c);
            t.nescape = 0;
        } else if (t.nescape == sizeof t.escape)
            t.nescape = 0;
        return;
    }
    if (c == '\033')
        t.escape[t.nescape++] = (char)c;
    else if (c == '\r')
        t.column = 0;
    else if (c == '\n')
        t.line += t.line + 1 < MAX_LINES;
    else if ((c & 0xc0) == 0x80 && t.column > 0) { /* the rest of a character */
        char *cell = t.cell[t.line][t.column - 1];
        const size_t len = strlen(cell);
        if (len < 4) {
            cell[len] = (char)c;
            cell[len + 1] = 0;
        }
    } else if (t.column < MAX_COLUMNS) {
        if (t.column >= t.columns)
            t.nunknown++; /* a line that is too long would wrap */
        t.cell[t.line][t.column][0] = (char)c;
        t.cell[t.line][t.column++][1] = 0;
    }
}

/* What has come within a moment; false: the other side is closed. */
static bool take_output(int wait_ms)
{
    struct pollfd from = {.fd = t.fd, .events = POLLIN};
    unsigned char bytes[4096];

    if (poll(&from, 1, wait_ms) <= 0)
        return true;
    const ssize_t nbytes = read(t.fd, bytes, sizeof bytes);
    for (ssize_t i = 0; i < nbytes; i++)
        take_byte(bytes[i]);
    return nbytes > 0;
}

static const char *line_text(int line)
{
    static char text[MAX_COLUMNS * 4 + 1];
    size_t len = 0;

    for (int column = 0; column < t.columns; column++)
        len += (size_t)sprintf(text + len, "%s", t.cell[line][column]);
    while (len && text[len - 1] == ' ')
        len--;
    text[len] = 0;
    return text;
}

static bool shows(const char *what)
{
    for (int line = 0; line < t.lines; line++)
        if (strstr(line_text(line), what))
            return true;
    return false;
}

static bool waits_until(const char *what, bool is_shown)
{
    const double until = fsdp_time_now() + PATIENCE_S;

    while (shows(what) != is_shown && fsdp_time_now() < until)
        take_output(50);
    while (take_output(50) && poll(&(struct pollfd){.fd = t.fd, .events = POLLIN}, 1, 0) > 0)
        ; /* the rest of the frame */
    if (shows(what) == is_shown)
        return true;
    for (int line = 0; line < t.lines; line++)
        printf("# |%s\n", line_text(line));
    return false;
}

static void type(const char *keys)
{
    if (write(t.fd, keys, strlen(keys)) < 0)
        printf("# keys: %s\n", strerror(errno));
}

/* ---- fsdp-top in it -------------------------------------------------------------------------- */

static void begin(int columns, int lines, const char *folder, char *const *environment)
{
    struct winsize size = {.ws_col = (unsigned short)columns, .ws_row = (unsigned short)lines};
    char program[512];
    int other;

    memset(&t, 0, sizeof t);
    t.columns = columns;
    t.lines = lines;
    clear(0, 0, MAX_LINES);
    snprintf(program, sizeof program, "%s/fsdp-top", getenv("BIN"));
    if (openpty(&t.fd, &other, NULL, NULL, &size) != 0)
        exit(1);
    tcgetattr(other, &t.before);
    fflush(stdout);
    t.pid = fork();
    if (t.pid == 0) {
        close(t.fd);
        login_tty(other);
        for (int i = 0; environment && environment[i]; i++)
            putenv(environment[i]);
        execl(program, "fsdp-top", "--interval", "0.2", "--sort", "name", folder, (char *)NULL);
        _exit(127);
    }
    /* Kept open, so that what was written last can be read. */
    t.escape[0] = 0;
    close(other);
}

/* The pty is as it was before: fsdp-top has come to its end. */
static bool is_given_back(void)
{
    struct termios now;
    const bool same = tcgetattr(t.fd, &now) == 0 && now.c_lflag == t.before.c_lflag &&
                      now.c_iflag == t.before.c_iflag && now.c_oflag == t.before.c_oflag;
    return same && !t.is_other && !t.is_hidden;
}

/* Its exit status, or 128 and the signal. */
static int end(void)
{
    const double until = fsdp_time_now() + PATIENCE_S;
    int status = 0;
    pid_t ended = 0;

    while (!ended && fsdp_time_now() < until) {
        take_output(20);
        ended = waitpid(t.pid, &status, WNOHANG);
    }
    if (!ended) {
        kill(t.pid, SIGKILL);
        waitpid(t.pid, &status, 0);
    }
    while (take_output(0) && poll(&(struct pollfd){.fd = t.fd, .events = POLLIN}, 1, 0) > 0)
        ;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static double wall_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static struct status a_run(enum status_state state)
{
    struct status status = {.state = state,
                            .ranks = 4,
                            .nodes = 2,
                            .attempt = 2,
                            .step = 638,
                            .steps = 1160,
                            .loss = 1.4006,
                            .eval_loss = 1.5,
                            .tokens_per_s = 11660,
                            .step_s = 0.18,
                            .mfu = 0.412,
                            .config = "/runs/settings/of/this/run.yaml",
                            .saved = {.step = 600},
                            .slowest = {.rank = 3, .seconds = 0.125},
                            .hung.rank = -1};

    process_self(&status.process);
    status.at = status.step_at = wall_now();
    status.began = status.at - 3600;
    status.saved.at = status.at - 12 * 60;
    return status;
}

static void put_run(const char *folder, const char *name, const struct status *status)
{
    char path[600];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/" STATUS_NAME, folder, name);
    if (status_write(status, path, NULL) != FSDP_OK)
        printf("# %s cannot be written\n", path);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void check_keys(const char *folder)
{
    struct status running = a_run(STATUS_RUNNING), hung = a_run(STATUS_HUNG);

    hung.hung.rank = 1;
    strcpy(hung.hung.host, "n7");
    strcpy(hung.hung.where, "step 639, gather of model.layers.3");
    put_run(folder, "alpha", &running);
    put_run(folder, "beta", &hung);
    begin(80, 24, folder, NULL);
    ok(waits_until("2 jobs: 1 hung, 1 running", true), "the first line counts runs");
    ok(t.is_other && t.is_hidden, "on another screen, without a cursor");
    ok(shows("alpha  running  638/1160  1.4006  11.7k  1m34s"), "a run has a line");
    ok(shows("4 on 2"), "with its ranks and nodes");
    ok(shows("  rank 1 on n7: step 639, gather of model.layers.3"), "what hangs has a second");
    ok(!shows("SLOWEST"), "80 columns have room for no more");

    struct winsize size = {.ws_col = 200, .ws_row = 30};
    t.columns = 200;
    t.lines = 30;
    ioctl(t.fd, TIOCSWINSZ, &size);
    ok(waits_until("SLOWEST", true) && waits_until("rank 3, 0.125s", true), "200 have");
    size = (struct winsize){.ws_col = 80, .ws_row = 24};
    ioctl(t.fd, TIOCSWINSZ, &size);
    ok(waits_until("SLOWEST", false), "and lose it when it is smaller again");
    t.columns = 80;
    t.lines = 24;

    type("s");
    ok(waits_until("s sort (by state)", true), "s sorts");
    ok(waits_until("beta", true) && strstr(line_text(3), "beta"), "what hangs comes first");
    type("sss");
    ok(waits_until("s sort (by name)", true), "and again by name");
    type("g\r");
    ok(waits_until("/runs/settings/of/this/run.yaml", true), "Enter shows the settings' path");
    ok(shows("638 of 1,160 (55.0%)") && shows("step 600, 12m ago"), "and all else");
    ok(shows("start 2 of this run"), "the number of the start");
    type("\033[B");
    ok(waits_until("trouble      rank 1 on n7", true), "an arrow goes to the next run");
    type("\033");
    ok(waits_until("s sort", true), "Esc goes back");

    running.loss = 1.2345;
    running.at = wall_now();
    put_run(folder, "alpha", &running);
    ok(waits_until("1.2345", true), "a new loss is shown");
    type("q");
    ok(end() == 0, "q ends");
    ok(is_given_back(), "and gives the terminal back");
    ok(t.nunknown == 0 && t.ncolored > 0, "lines fit, and no other sequences were used");
    close(t.fd);
}

static void check_signals(const char *folder)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    int status;

    for (int i = 0; i < (int)(sizeof signals / sizeof signals[0]); i++) {
        begin(80, 24, folder, NULL);
        waits_until("2 jobs", true);
        if (signals[i] == SIGINT)
            type("\003");
        else
            kill(t.pid, signals[i]);
        ok(end() == 128 + signals[i] && is_given_back(), "signal %d ends it, and all is given back",
           signals[i]);
        close(t.fd);
    }
    begin(80, 24, folder, NULL);
    waits_until("2 jobs", true);
    kill(t.pid, SIGTSTP);
    while (waitpid(t.pid, &status, WUNTRACED | WNOHANG) == 0)
        take_output(20);
    take_output(20);
    ok(WIFSTOPPED(status) && is_given_back(), "suspended, it gives all back");
    kill(t.pid, SIGCONT);
    clear(0, 0, MAX_LINES);
    ok(waits_until("2 jobs", true) && t.is_other, "and takes it again");
    type("q");
    ok(end() == 0 && is_given_back(), "up to its end");
    close(t.fd);
}

static void check_plain(const char *folder)
{
    static char no_color[] = "NO_COLOR=1", dumb[] = "TERM=dumb";
    char *plain[] = {no_color, NULL}, *simple[] = {dumb, NULL};

    begin(80, 24, folder, plain);
    ok(waits_until("2 jobs", true) && t.ncolored == 0, "NO_COLOR: there are none");
    type("q");
    end();
    close(t.fd);
    begin(80, 24, folder, simple);
    ok(end() == 0 && !t.is_other && shows("alpha"), "a terminal that knows nothing gets a table");
    close(t.fd);
}

static void check_deep(const char *folder)
{
    char command[2400];

    snprintf(command, sizeof command, "mkdir -p '%s/1/2/3/4/5/6/7/8/9'", folder);
    ok(system(command) == 0, "deep folders");
    begin(80, 24, folder, NULL);
    ok(waits_until("runs more than 8 levels deep are not shown; give a folder: ", true) &&
           shows("alpha"),
       "folders that are not looked into are said");
    type("q");
    ok(end() == 0 && is_given_back(), "given back");
    close(t.fd);
    snprintf(command, sizeof command, "rm -r '%s/1'", folder);
    ok(system(command) == 0, "cleaned up");
}

static void check_many(const char *folder)
{
    const struct status done = a_run(STATUS_DONE);
    char name[16];

    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "run-%02d", i);
        put_run(folder, name, &done);
    }
    begin(80, 24, folder, NULL);
    ok(waits_until("42 jobs", true) && waits_until("run-10", true) && !shows("run-39"),
       "a screen of many");
    type("G");
    ok(waits_until("run-39", true) && !shows("alpha"), "the last");
    type("kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk");
    ok(waits_until("alpha", true) && !shows("run-39"), "and back to the first");
    type("q");
    ok(end() == 0 && is_given_back(), "given back");
    close(t.fd);
}

/* Files of other people: numbers at the ends of double, texts that command a terminal. */
static void check_hostile(const char *folder)
{
    struct status status = a_run(STATUS_FAILED);
    char path[300];

    snprintf(path, sizeof path, "%s/hostile", folder);
    mkdir(path, 0777);
    snprintf(status.metrics, sizeof status.metrics, "%s/hostile/m.jsonl", folder);
    snprintf(status.reason, sizeof status.reason,
             "an\xc2\x9b"
             "2J end");
    status.loss = status.tokens_per_s = status.step_s = 1.7e308;
    status.saved.at = status.began = -1.7e308;
    put_run(path, "a", &status);
    FILE *to = fopen(status.metrics, "w");
    for (int i = 1; to && i <= 300; i++)
        fprintf(to, "{\"step\": %d, \"loss\": %s1.7e308, \"tokens_per_s\": 1.7e308}\n", i,
                i % 2 ? "-" : "");
    if (to)
        fclose(to);
    begin(80, 24, path, NULL);
    ok(waits_until("an?2J end", true), "a control character of two bytes is none");
    type("\r");
    ok(waits_until("tokens/s", true), "a curve of the widest range");
    type("q");
    ok(end() == 0 && is_given_back(), "given back");
    close(t.fd);
}

int main(void)
{
    char folder[] = "/tmp/fsdp-top-XXXXXX", command[64];

    if (!mkdtemp(folder) || !getenv("BIN"))
        return 1;
    setenv("TERM", "xterm", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    unsetenv("NO_COLOR");
    unsetenv("COLUMNS");
    check_keys(folder);
    check_signals(folder);
    check_plain(folder);
    check_deep(folder);
    check_many(folder);
    check_hostile(folder);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    ok(system(command) == 0, "cleaned up");
    return tap_done();
}
