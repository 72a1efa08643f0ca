/* SPDX-License-Identifier: Apache-2.0 */
/* files.h: small files of a model that lies in a store. Private to models/generate. */
#ifndef GENERATE_FILES_H
#define GENERATE_FILES_H

#include "session.h"

/* Removes what generate_session_file fetched. */
void generate_files_remove(struct generate_session *s);

#endif
