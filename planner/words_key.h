/*
 * planner/words_key.h - keys of hash tables that are structs of int64_t without padding.
 */
#ifndef PLANNER_WORDS_KEY_H
#define PLANNER_WORDS_KEY_H

#include <glib.h>
#include <stdint.h>
#include <string.h>

G_BEGIN_DECLS

/* The hash of the @n_bytes, whole words, at @data. */
static inline guint
plan_words_hash(gconstpointer data, size_t n_bytes)
{
    const int64_t *words = data;
    uint64_t hash = 0;

    for (size_t i = 0; i < n_bytes / sizeof *words; i++)
        hash = hash * 1000003 + (uint64_t)words[i];
    return (guint)(hash ^ hash >> 32);
}

/* Defines hash_key() and keys_equal() of @type for g_hash_table_new_full(). */
#define PLAN_DEFINE_WORDS_KEY(type)                                                                \
    static guint hash_key(gconstpointer data)                                                      \
    {                                                                                              \
        return plan_words_hash(data, sizeof(type));                                                \
    }                                                                                              \
                                                                                                   \
    static gboolean keys_equal(gconstpointer a, gconstpointer b)                                   \
    {                                                                                              \
        return memcmp(a, b, sizeof(type)) == 0;                                                    \
    }

G_END_DECLS

#endif /* PLANNER_WORDS_KEY_H */
