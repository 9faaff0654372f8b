/*
 * cli/draw/html.h - a simulated iteration as one page: numbers, where the time goes, timeline,
 * memory.
 *
 * A file that needs nothing else: it loads nothing (a policy in it forbids that), opens from disk,
 * prints, follows the reader's light or dark preference, and is complete without scripts; with them
 * the timeline can be zoomed and tells what is under the pointer.  Below 5 MB: boxes too small to
 * see are merged, and the page says so.
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
 * @job     (nullable) none for a bare schedule.
 * @footer  the command that writes it.
 */
bool html_write(const Job *job, const Report *report, const Trace *trace, const char *footer,
                const char *path, GError **error);

G_END_DECLS

#endif /* CLI_DRAW_HTML_H */
