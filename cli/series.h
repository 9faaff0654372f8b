/*
 * cli/series.h - lists and ranges of whole numbers on the command line: "64,128", "64..1024:x2".
 *
 *   series = part {"," part};  part = N | A..B:+STEP | A..B:xFACTOR
 *
 * A range has A, A + STEP (or A * FACTOR), ... up to B.  The numbers of a series ascend strictly
 * once it is read: it is a set.
 *
 * Errors: UNITS_ERROR_INVALID names the part and what was expected.
 */
#ifndef CLI_SERIES_H
#define CLI_SERIES_H

#include <glib.h>
#include <stdint.h>

G_BEGIN_DECLS

/* Numbers of one series. */
#define SERIES_MAX 4096

/* Returns: (owned, nullable) GArray of int64_t, each in [min, max], at least one. */
GArray *series_parse(const char *text, int64_t min, int64_t max, GError **error);

G_END_DECLS

#endif /* CLI_SERIES_H */
