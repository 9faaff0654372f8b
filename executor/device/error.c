/* The domain of backend.h's errors, alone in its file because plugins need it without the rest. */
#include "executor/device/backend.h"

G_DEFINE_QUARK(exec_error, exec_error)
