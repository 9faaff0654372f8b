/*
 * cli/html.h - a simulated iteration as one page: numbers, where the time goes, timeline, memory.
 *
 * One file without scripts or references: it opens from disk, works offline, prints, follows the
 * reader's light or dark preference.  Boxes tell what they are when the pointer is over them.
 * Equal inputs give equal bytes.
 *
 * Errors: G_FILE_ERROR.
 */
#ifndef CLI_HTML_H
#define CLI_HTML_H

#include "cli/job.h"

G_BEGIN_DECLS

/* @job  (nullable) none for a bare schedule. */
bool html_write(const Job *job, const Report *report, const Trace *trace, const char *path,
                GError **error);

G_END_DECLS

#endif /* CLI_HTML_H */
