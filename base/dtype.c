#include "base/dtype.h"

#include <stddef.h>

const char *const dtype_names[DTYPE_N + 1] = {"fp32", "tf32", "fp16", "bf16", "fp8", NULL};
