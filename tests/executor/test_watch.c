/* Tests of executor/watch/watch.h: who is to blame for a standstill. */
#include "executor/watch/watch.h"

#include <string.h>

#define LIMIT 1000

/* "c" computes, "e" has ended, "a" waits in a group, a digit waits for that rank; upper case:
 * within the limit.  All others have not moved for longer. */
static int32_t
parse(const char *text, ExecWatched *ranks)
{
    const int32_t n = (int32_t)strlen(text);

    for (int32_t r = 0; r < n; r++) {
        const bool moves = g_ascii_isupper(text[r]);
        const char kind = g_ascii_tolower(text[r]);
        ranks[r] = (ExecWatched){
            .ended = kind == 'e',
            .idle_ns = moves ? LIMIT : LIMIT + 1,
            .waiting_for = kind == 'a'             ? EXEC_WAITING_FOR_GROUP
                           : g_ascii_isdigit(kind) ? kind - '0'
                                                   : EXEC_NOT_WAITING,
        };
    }
    return n;
}

static void
test_blames_the_end_of_the_chain(void)
{
    static const struct {
        const char *ranks;
        int32_t culprit; /* -1: nobody */
        bool circle;
    } cases[] = {
        {"CCC", -1, false}, /* all move */
        {"cCC", 0, false},  /* computes too long */
        {"12c", 2, false},  /* 0 waits for 1 for 2 */
        {"12C", -1, false}, /* ... who still moves */
        {"120", 0, true},   /* a deadlock */
        {"aac", 2, false},  /* a collective that 2 has not come to */
        {"aaC", -1, false}, /* ... but is on its way to */
        {"aaa", 0, true},   /* all in collectives of different groups */
        {"1aac", 3, false}, /* a chain that ends in a collective */
        {"1eC", 0, false},  /* waits for one that has ended: a message that will never come */
        {"eee", -1, false},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        ExecWatched ranks[8];
        ExecHung hung = {.culprit = -1};
        const int32_t n = parse(cases[i].ranks, ranks);
        const bool found = exec_watch_find_hung(ranks, n, LIMIT, &hung);
        g_test_message("%s: %d", cases[i].ranks, found ? hung.culprit : -1);
        g_assert_cmpint(found ? hung.culprit : -1, ==, cases[i].culprit);
        if (found)
            g_assert_cmpint(hung.circle, ==, cases[i].circle);
    }
}

static void
test_the_message_names_culprit_and_waiter(void)
{
    const ExecHung chain = {.culprit = 4, .waiter = 5}, alone = {.culprit = 4, .waiter = 4},
                   circle = {.culprit = 1, .waiter = 1, .circle = true};
    g_autoptr(GError) a = exec_watch_hung_error(&chain, "rank 4", "B1.0 of step 1", 2040000000);
    g_autoptr(GError) b = exec_watch_hung_error(&alone, "rank 4", "F0.0 of step 0", 1000000000);
    g_autoptr(GError) c = exec_watch_hung_error(&circle, "rank 1", "F0.0 of step 0", 1000000000);

    g_assert_error(a, EXEC_ERROR, EXEC_ERROR_RANK_HUNG);
    g_assert_cmpstr(a->message, ==,
                    "rank 4 hangs in B1.0 of step 1 for 2.0 s; rank 5 waits for it");
    g_assert_cmpstr(b->message, ==, "rank 4 hangs in F0.0 of step 0 for 1.0 s");
    g_assert_cmpstr(c->message, ==, "rank 1 waits in a circle in F0.0 of step 0 for 1.0 s");
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/watch/blames-the-end-of-the-chain",
                    test_blames_the_end_of_the_chain);
    g_test_add_func("/executor/watch/the-message-names-culprit-and-waiter",
                    test_the_message_names_culprit_and_waiter);
    return g_test_run();
}
