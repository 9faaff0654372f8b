/* Tests of executor/model/attention.h: the tokens of a slice over the ranks. */
#include "executor/model/attention.h"

/* Every token is on one rank, and where 2 cp divides them all ranks see equally many scores: token
 * t sees t + 1 keys and those before the slice. */
static void
test_chunks_cover_and_balance(void)
{
    static const int64_t cases[][2] = {{12, 1}, {12, 2}, {12, 3}, {6, 2}, {8, 4}, {24, 3}, {16, 8}};

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const int64_t tokens = cases[i][0], cp = cases[i][1];
        int64_t seen[32] = {0}, scores[8] = {0};
        for (int64_t rank = 0; rank < cp; rank++) {
            ExecChunk chunks[2];
            const int n = exec_slice_chunks(tokens, cp, rank, chunks);
            int64_t own = 0;
            for (int c = 0; c < n; c++)
                for (int64_t t = chunks[c].begin; t < chunks[c].begin + chunks[c].n; t++, own++) {
                    seen[t]++;
                    scores[rank] += t + 1;
                }
            g_assert_cmpint(own, ==, tokens / cp);
            g_assert_true(n == 1 || chunks[0].begin + chunks[0].n <= chunks[1].begin);
        }
        for (int64_t t = 0; t < tokens; t++)
            g_assert_cmpint(seen[t], ==, 1);
        for (int64_t rank = 1; rank < cp && tokens % (2 * cp) == 0; rank++)
            g_assert_cmpint(scores[rank], ==, scores[0]);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/context/chunks-cover-and-balance", test_chunks_cover_and_balance);
    return g_test_run();
}
