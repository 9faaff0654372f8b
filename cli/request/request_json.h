/*
 * cli/request/request_json.h - a request of `degas simulate --batch`: one JSON object.
 *
 * "model" and "cluster" (a name, a path or an object), and the flags of `degas simulate` as keys
 * with '_' for '-'; "id" is the caller's.
 */
#ifndef CLI_REQUEST_REQUEST_JSON_H
#define CLI_REQUEST_REQUEST_JSON_H

#include "cli/request/conditions.h"
#include "cli/request/request.h"

G_BEGIN_DECLS

/*
 * @given       (nullable) a cluster that takes the place of the object's.
 * @conditions  (out, nullable) cleared by the caller; NULL: their keys are unknown ones.
 * Returns: (owned) NULL on JSON_ERROR_INVALID, CMD_ERROR, G_FILE_ERROR.
 */
Request *request_read(JsonDoc *doc, const JsonValue *object, const Profile *given,
                      Conditions *conditions, GError **error);

G_END_DECLS

#endif /* CLI_REQUEST_REQUEST_JSON_H */
