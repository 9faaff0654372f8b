/*
 * cli/validate/request.h - writes a measured run as a request of `degas simulate --batch`.
 *
 * This is the only way from a row to a prediction, so what `degas validate` scores is what `degas
 * simulate --batch` answers to the same line; `degas validate --requests FILE` writes the lines.
 *
 * Errors: VALIDATION_ERROR_UNSTATED where a row does not say enough; rows that lack the same have
 * the same message.
 */
#ifndef CLI_VALIDATE_REQUEST_H
#define CLI_VALIDATE_REQUEST_H

#include "cli/validate/sources.h"

G_BEGIN_DECLS

#define VALIDATION_ERROR (validation_error_quark())
GQuark validation_error_quark(void);

typedef enum {
    VALIDATION_ERROR_UNSTATED,
} ValidationError;

/*
 * @cluster  (nullable) a name or path; NULL: the built-in cluster of the row's devices
 * Returns: (owned) one line of JSON with its line feed, or NULL.
 */
char *validation_request(const MeasuredRow *row, const char *cluster, GError **error);

G_END_DECLS

#endif /* CLI_VALIDATE_REQUEST_H */
