/*
 * cli/validate/request.h - a measured run as a request of `degas simulate --batch`.
 *
 * The only way from a row to a prediction: what `degas validate` scores is what `degas simulate
 * --batch` answers to the same line (`degas validate --requests FILE` writes them).
 *
 * Errors: VALIDATION_ERROR_UNSTATED where a row does not say enough; the message is the same for
 * all rows that lack the same.
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
 * @cluster  a name or path, or NULL: the built-in one of the row's devices.
 * Returns: (owned) one line of JSON with its line feed, or NULL.
 */
char *validation_request(const MeasuredRow *row, const char *cluster, GError **error);

G_END_DECLS

#endif /* CLI_VALIDATE_REQUEST_H */
