/*
 * cli/validate/row_model.h - the model of a measured run: a built-in one where the table "models" of
 * sources.json names it, with the widths that the row's columns state, or one made of these alone.
 *
 * A built-in model knows what no column says: which layers are of which kind, latent experts, what a
 * module of prediction is.  A width that a row states is never the built-in model's; where layers
 * are of several kinds, and a stated width is another than theirs, it is not known whose it is and the
 * row is refused.
 */
#pragma once

#include "base/json.h"
#include "cli/validate/sources.h"

/* Sets @error to VALIDATION_ERROR_UNSTATED with this message.  Returns: false. */
bool validation_unstated(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);

/*
 * Writes the key "model" of the request of @row.
 * @row  degrees are filled in; what the row leaves blank of layers and widths is taken from the
 *       built-in model, for whoever divides layers into stages
 */
bool validation_write_model(JsonWriter *writer, MeasuredRow *row, const ValidationSource *source,
                            GError **error);

/* Layers and MTP modules, which stand in the last stages as layers do. */
int64_t validation_n_stacked(const MeasuredRow *row);
