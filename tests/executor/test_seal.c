/* Tests of executor/transport/seal.h: no single flipped bit goes unnoticed, nor do bytes that belong
 * to another message, and what is said names both ranks. */
#include "executor/transport/seal.h"

#include <string.h>

static void
test_every_bit_counts(void)
{
    unsigned char data[100];

    for (int i = 0; i < (int)sizeof data; i++)
        data[i] = (unsigned char)(i * 37);
    for (int64_t n = 1; n <= (int64_t)sizeof data; n++) {
        const ExecMessage message = {.from = 1, .to = 2, .tag = 3, .n_bytes = n};
        const uint64_t seal = exec_seal(&message, data);
        for (int64_t bit = 0; bit < 8 * n; bit++) {
            data[bit / 8] ^= (unsigned char)(1 << bit % 8);
            g_assert_cmpuint(exec_seal(&message, data), !=, seal);
            data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
        g_assert_cmpuint(exec_seal(&message, data), ==, seal);
    }
}

/* A wire that is stuck flips the same bit of many words. */
static void
test_a_stuck_bit(void)
{
    uint64_t data[64] = {0};
    const ExecMessage message = {.n_bytes = sizeof data};
    const uint64_t seal = exec_seal(&message, data);

    for (int bit = 0; bit < 64; bit++)
        for (int step = 1; step <= 16; step++) {
            memset(data, 0, sizeof data);
            for (int i = 0; i < 64; i += step)
                data[i] = UINT64_C(1) << bit;
            g_assert_cmpuint(exec_seal(&message, data), !=, seal);
        }
}

static void
test_who_and_which(void)
{
    const char data[] = "the same bytes", same[] = "the same bytes";
    const ExecMessage right = {1, 2, 3, sizeof data};
    const ExecMessage wrong[] = {
        {2, 2, 3, sizeof data}, {1, 1, 3, sizeof data},     {2, 1, 3, sizeof data},
        {1, 2, 4, sizeof data}, {1, 2, 3, sizeof data - 1},
    };
    const uint64_t seal = exec_seal(&right, data);
    g_autoptr(GError) error = NULL;

    g_assert_true(exec_check_seal(&right, same, seal, &error));
    g_assert_no_error(error);
    for (size_t i = 0; i < G_N_ELEMENTS(wrong); i++)
        g_assert_cmpuint(exec_seal(&wrong[i], data), !=, seal);
    g_assert_false(exec_check_seal(&right, data, seal + 1, &error));
    g_assert_cmpstr(error->message, ==,
                    "a message of rank 1 to rank 2 (tag 3, 15 bytes) was damaged on its way: its "
                    "checksum is not the one that was sent");
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/seal/every-bit-counts", test_every_bit_counts);
    g_test_add_func("/executor/seal/a-stuck-bit", test_a_stuck_bit);
    g_test_add_func("/executor/seal/who-and-which", test_who_and_which);
    return g_test_run();
}
