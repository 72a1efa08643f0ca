/* SPDX-License-Identifier: Apache-2.0 */
/* placeholder */
#include "fake_program.h"
int main(int argc, char **argv)
{
    return launch_main(argc, argv, &fake_program);
}
