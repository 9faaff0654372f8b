/*
 * models/huggingface_types.h - the table of the model_types that are read: a row for each, with what
 * it has besides its widths, and a function for what only it has.
 *
 * Private to models/.
 */
#pragma once

#include "models/huggingface_import.h"

/* The rows, @n of them. */
const HfType *hf_types(size_t *n);
