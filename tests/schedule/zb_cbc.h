/*
 * tests/schedule/zb_cbc.h - the optimum of a small zb-auto problem by the program cbc.
 *
 * Starts are numbers, the order of two ops of a rank that the chains leave open is a binary; the
 * limit of micro-batches is a chain too: F k after W k - limit  [2401.10241 appendix G, with order
 * instead of memory as variables, since micro-batches are alike].
 */
#pragma once

#include <glib/gstdio.h>
#include <string.h>

#include "tests/schedule/zb_exact.h"

#define CBC_NOT_PROVEN (-1)

/* "s2I0" is the start of I of micro-batch 0 on rank 2. */
static inline void
cbc_start(GString *text, int rank, int kind, int k)
{
    g_string_append_printf(text, "s%d%c%d", rank, "FIW"[kind], k);
}

/* op b starts @ns or more after op a starts; unless binary @x, if there is one, is @value. */
static inline void
cbc_after(GString *text, const int a[3], const int b[3], int64_t ns, int x, int value,
          int64_t horizon)
{
    g_string_append_c(text, ' ');
    cbc_start(text, b[0], b[1], b[2]);
    g_string_append(text, " - ");
    cbc_start(text, a[0], a[1], a[2]);
    if (x < 0) {
        g_string_append_printf(text, " >= %d\n", (int)ns);
    } else {
        /* With value 1: b - a + horizon x >= ns; with 0: b - a - horizon x >= ns - horizon. */
        g_string_append_printf(text, " %c %d x%d >= %d\n", value == 1 ? '+' : '-', (int)horizon, x,
                               (int)(value == 1 ? ns : ns - horizon));
    }
}

/* The rank's chains, its end, and one binary for each pair of ops whose order is open. */
static inline void
cbc_rank(GString *text, const ExactProblem *q, int r, int64_t horizon, int *n_binaries)
{
    for (int k = 0; k < q->m; k++) {
        const int f[3] = {r, EXACT_F, k}, i[3] = {r, EXACT_I, k}, w[3] = {r, EXACT_W, k};
        for (int kind = 0; kind < EXACT_KINDS && k + 1 < q->m; kind++)
            cbc_after(text, (const int[3]){r, kind, k}, (const int[3]){r, kind, k + 1},
                      q->ns[r][kind], -1, 0, 0);
        cbc_after(text, f, i, q->ns[r][EXACT_F], -1, 0, 0);
        cbc_after(text, i, w, q->ns[r][EXACT_I], -1, 0, 0);
        if (k + q->limit < q->m)
            cbc_after(text, w, (const int[3]){r, EXACT_F, k + q->limit}, q->ns[r][EXACT_W], -1, 0,
                      0);
        if (r + 1 < q->p) {
            cbc_after(text, f, (const int[3]){r + 1, EXACT_F, k},
                      q->ns[r][EXACT_F] + q->forward_message_ns[r], -1, 0, 0);
            cbc_after(text, (const int[3]){r + 1, EXACT_I, k}, i,
                      q->ns[r + 1][EXACT_I] + q->backward_message_ns[r + 1], -1, 0, 0);
        }
        /* An earlier kind of a later micro-batch. */
        for (int early = EXACT_F; early < EXACT_W; early++)
            for (int late = early + 1; late < EXACT_KINDS; late++)
                for (int j = k + 1; j < q->m; j++) {
                    const int a[3] = {r, late, k}, b[3] = {r, early, j};
                    cbc_after(text, a, b, q->ns[r][late], *n_binaries, 1, horizon);
                    cbc_after(text, b, a, q->ns[r][early], *n_binaries, 0, horizon);
                    ++*n_binaries;
                }
    }
    g_string_append(text, " makespan - ");
    cbc_start(text, r, EXACT_W, q->m - 1);
    g_string_append_printf(text, " >= %d\n", (int)(q->ns[r][EXACT_W] + q->offset_ns[r]));
}

static inline char *
cbc_lp(const ExactProblem *q)
{
    GString *text = g_string_new("Minimize\n makespan\nSubject To\n");
    int64_t horizon = 0;
    int n_binaries = 0;

    for (int r = 0; r < q->p; r++)
        horizon += q->m * (q->ns[r][EXACT_F] + q->ns[r][EXACT_I] + q->ns[r][EXACT_W] +
                           q->forward_message_ns[r] + q->backward_message_ns[r]);
    for (int r = 0; r < q->p; r++)
        cbc_rank(text, q, r, horizon, &n_binaries);
    g_string_append(text, "Binaries\n");
    for (int x = 0; x < n_binaries; x++)
        g_string_append_printf(text, " x%d\n", x);
    g_string_append(text, "End\n");
    return g_string_free(text, false);
}

/* Returns the optimum, or CBC_NOT_PROVEN after @seconds. */
static inline int64_t
cbc_solve(char *program, const ExactProblem *q, int seconds)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *folder = g_dir_make_tmp("degas-cbc-XXXXXX", &error);
    g_assert_no_error(error);
    g_autofree char *in = g_build_filename(folder, "a.lp", NULL);
    g_autofree char *out = g_build_filename(folder, "a.sol", NULL);
    g_autofree char *lp = cbc_lp(q), *limit = g_strdup_printf("%d", seconds), *answer = NULL;
    char *argv[] = {program, in, "sec", limit, "solve", "solu", out, NULL};
    int64_t ns = CBC_NOT_PROVEN;

    g_file_set_contents(in, lp, -1, &error);
    g_assert_no_error(error);
    g_spawn_sync(NULL, argv, NULL, G_SPAWN_STDOUT_TO_DEV_NULL | G_SPAWN_STDERR_TO_DEV_NULL, NULL,
                 NULL, NULL, NULL, NULL, &error);
    g_assert_no_error(error);
    /* The first line: "Optimal - objective value 27.00000000". */
    if (g_file_get_contents(out, &answer, NULL, NULL) && g_str_has_prefix(answer, "Optimal"))
        ns = (int64_t)(g_ascii_strtod(strstr(answer, "value") + 5, NULL) + 0.5);
    g_unlink(in);
    g_unlink(out);
    g_rmdir(folder);
    return ns;
}
