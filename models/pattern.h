/*
 * models/pattern.h - which layer is of which kind, as text: "10*(5*sliding, full), 2*sliding".
 *
 * Internal to models/.  A list of items with commas between them; an item is the name of a kind or
 * a list in parentheses, and a number with an asterisk before it repeats it.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

/*
 * Reads @text into the kinds of @n_layers layers.
 * @names   of the kinds, NULL-terminated
 * Returns: (owned) the index of each layer's kind; NULL where the text is wrong, and then @message
 * (out, owned) says what was found and what was expected.
 */
uint8_t *model_pattern_read(const char *text, const char *const *names, int64_t n_layers,
                            char **message);

/* Returns: (owned) the shortest such text that this finds for @kinds, read back to the same. */
char *model_pattern_write(const uint8_t *kinds, int64_t n_layers, const char *const *names);
