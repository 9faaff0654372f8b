/*
 * cli/request/request_read.h - what request.c asks of the reader of flags.  Internal to cli/request*.c.
 */
#ifndef CLI_REQUEST_REQUEST_READ_H
#define CLI_REQUEST_REQUEST_READ_H

#include "cli/request/request.h"

G_BEGIN_DECLS

/* Fills request->plan from @options, with what they mean when absent; mistakes are recorded in
 * @options. */
void request_read_plan(Request *request, Options *options, RequestKind kind);

G_END_DECLS

#endif /* CLI_REQUEST_REQUEST_READ_H */
