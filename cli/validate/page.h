/*
 * cli/validate/page.h - writes docs/validation.md: the table of `degas validate`, a picture for
 * each set, and for missed goals the columns of the rows that the errors go with.
 */
#ifndef CLI_VALIDATE_PAGE_H
#define CLI_VALIDATE_PAGE_H

#include "cli/validate/report.h"

G_BEGIN_DECLS

/*
 * Writes the page (Markdown) to @path and pictures to pictures/validation-SET-QUANTITY.svg beside
 * it; the folder pictures must exist.  Errors: G_FILE_ERROR, CMD_ERROR_MISSING (no gnuplot).
 */
bool validation_page_write(const Validation *validation, const char *path, GError **error);

G_END_DECLS

#endif /* CLI_VALIDATE_PAGE_H */
