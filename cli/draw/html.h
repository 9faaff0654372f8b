/*
 * cli/draw/html.h - writes a simulated iteration as one HTML page: numbers, where the time goes,
 * timeline, memory.
 *
 * The page is one file that loads nothing else (a policy in it forbids that).  It opens from disk,
 * can be printed, and follows the reader's preference for light or dark.  Without scripts it is
 * complete; with them the timeline can be zoomed and tells what is under the pointer.  It stays
 * below 5 MB: boxes that are too small to see are merged, and the page says so.
 *
 * All text from outside is escaped.  Equal inputs give equal bytes.
 *
 * Errors: G_FILE_ERROR.
 */
#ifndef CLI_DRAW_HTML_H
#define CLI_DRAW_HTML_H

#include "cli/request/job.h"

G_BEGIN_DECLS

/*
 * Writes the page to @path ("-": stdout), whole or not at all.
 * @job     (nullable) NULL for a bare schedule
 * @footer  the command line that writes it
 */
bool html_write(const Job *job, const Report *report, const Trace *trace, const char *footer,
                const char *path, GError **error);

G_END_DECLS

#endif /* CLI_DRAW_HTML_H */
