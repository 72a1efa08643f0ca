/* SPDX-License-Identifier: Apache-2.0 */
/* What the watchdog concludes from what the ranks tell it. */
#include "tap.h"

#include "train/node/watch.h"

enum { N = 4 };

static void all_at(struct watch_beat *beats, int64_t step, uint64_t nops)
{
    for (int r = 0; r < N; r++)
        beats[r] = (struct watch_beat){
            .step = step, .nops = nops, .step_s = 1, .busy_s = 0.6, .longest_s = 2};
}

int main(void)
{
    struct watch_beat beats[N];
    double median = 0;

    all_at(beats, 10, 7);
    ok(watch_deadline(beats, N, 60, 600) == 60, "short steps: the floor");
    beats[2].longest_s = 9;
    ok(watch_deadline(beats, N, 60, 600) == 90, "long steps: ten of the longest of any rank");
    beats[1].longest_s = 0;
    ok(watch_deadline(beats, N, 60, 600) == 600, "before a rank's first step: that of phases");
    all_at(beats, 10, 7);
    beats[3].phase = 1;
    ok(watch_deadline(beats, N, 60, 600) == 600, "while a rank saves, too");

    all_at(beats, 10, 7);
    ok(watch_hung(beats, N, 60) == -1, "nobody is late");
    for (int r = 0; r < N; r++)
        beats[r].idle_s = 61;
    beats[2].nops = 5;
    ok(watch_hung(beats, N, 60) == 2, "who has come to fewer operations");
    all_at(beats, 10, 7);
    for (int r = 0; r < N; r++) {
        beats[r].idle_s = 61;
        beats[r].comm = r != 3;
    }
    ok(watch_hung(beats, N, 60) == 3, "who is not in the collective that the others are in");

    all_at(beats, 10, 7);
    ok(watch_straggler(beats, N, &median) == -1, "all are equally fast");
    ok(watch_slowest(beats, 1) == -1, "one alone is not the slowest");
    beats[1].busy_s = 1;
    ok(watch_straggler(beats, N, &median) == 1 && median == 0.6, "one computes longer");
    ok(watch_slowest(beats, N) == 1, "and is the slowest");
    beats[1].busy_s = 0.85;
    ok(watch_straggler(beats, N, &median) == -1, "but not by a little");
    beats[1].busy_s = 5;
    beats[0].phase = 1;
    ok(watch_straggler(beats, N, &median) == -1, "nobody is judged while a rank saves");
    ok(watch_slowest(beats, N) == -1, "nor called the slowest");

    ok(watch_speaks(0, 3) && !watch_speaks(1, 3) && !watch_speaks(3, 3), "rank 0 says why");
    ok(!watch_speaks(0, 0) && watch_speaks(1, 0) && !watch_speaks(2, 0),
       "rank 1 where rank 0 is at fault");
    ok(watch_speaks(0, -1) && watch_speaks(1, -1) && !watch_speaks(2, -1),
       "both where nobody is known to be at fault");
    return tap_done();
}
