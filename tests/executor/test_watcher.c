/* Tests of executor/watch/watcher.h and member.h with ranks that are connections of this process: those
 * that do not come are counted, and what is damaged or of another version is refused by name. */
#include "executor/watch/watcher.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "executor/transport/addresses.h"
#include "executor/transport/transport.h"
#include "executor/watch/member.h"

#define N_RANKS 8

/* Ranks 0 and 5 come and keep talking; of the others nothing is ever seen. */
static void
test_those_that_do_not_come_are_named(void)
{
    const ExecWatcherOptions options = {.n_ranks = N_RANKS, .timeout_s = 0.5};
    const int32_t there[] = {0, 5};
    g_autoptr(GError) error = NULL;
    g_autoptr(ExecWatcher) watcher = exec_watcher_new(&options, &error);
    ExecMember *members[G_N_ELEMENTS(there)];
    ExecWatcherState state = EXEC_WATCHER_GOING;

    g_assert_no_error(error);
    for (size_t i = 0; i < G_N_ELEMENTS(there); i++) {
        members[i] = exec_member_connect(exec_watcher_where(watcher), there[i], &error);
        g_assert_no_error(error);
    }
    const int64_t begin_us = g_get_monotonic_time();
    while (state == EXEC_WATCHER_GOING) {
        for (size_t i = 0; i < G_N_ELEMENTS(there); i++) {
            ExecWatchRecord record = {.kind = EXEC_WATCH_PULSE, .waiting_for = EXEC_NOT_WAITING};
            exec_member_tell(members[i], &record);
        }
        state = exec_watcher_look(watcher, &error);
        g_usleep(20000);
    }
    /* However short the timeout: a machine may be busy with starting them. */
    g_assert_cmpint(g_get_monotonic_time() - begin_us, >=, 3 * G_USEC_PER_SEC);
    g_assert_cmpint(state, ==, EXEC_WATCHER_FAILED);
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_RANK_HUNG);
    g_assert_true(g_str_has_prefix(error->message, "ranks 1-4, 6, 7 have not started within "));
    g_assert_true(g_str_has_suffix(error->message, " s of the first (2 of 8 have)"));
    for (size_t i = 0; i < G_N_ELEMENTS(there); i++)
        exec_member_free(members[i]);
}

/* A record with any bit flipped is none. */
static void
test_every_bit_of_a_record_counts(void)
{
    ExecWatchRecord record = {.kind = EXEC_WATCH_PULSE, .rank = 3, .text = "F0.0 of step 7"}, in;
    unsigned char *bytes = (unsigned char *)&record;
    int ends[2];
    size_t n_bytes = 0;

    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), ==, 0);
    exec_watch_seal(&record);
    for (size_t bit = 0; bit <= 8 * sizeof record; bit++) {
        if (bit < 8 * sizeof record)
            bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        g_assert_cmpint(write(ends[0], &record, sizeof record), ==, sizeof record);
        const ExecWatchRead read = exec_watch_read(ends[1], &in, &n_bytes);
        if (bit == 8 * sizeof record)
            g_assert_cmpint(read, ==, EXEC_WATCH_READ_RECORD);
        else if (bit / 8 >= offsetof(ExecWatchRecord, version) &&
                 bit / 8 < offsetof(ExecWatchRecord, seal))
            g_assert_cmpint(read, ==, EXEC_WATCH_READ_VERSION);
        else
            g_assert_cmpint(read, ==, EXEC_WATCH_READ_DAMAGED);
        if (bit < 8 * sizeof record)
            bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    close(ends[0]);
    close(ends[1]);
}

/* A rank's connection, made of bytes. */
static int
call(const char *where)
{
    const int fd = exec_addresses_connect(strchr(where, '@') + 1);

    g_assert_cmpint(fd, >=, 0);
    return fd;
}

static void
say(int fd, ExecWatchRecord record, uint32_t version, unsigned damage)
{
    exec_watch_seal(&record);
    record.version = version;
    record.step ^= damage;
    g_assert_cmpint(send(fd, &record, sizeof record, MSG_NOSIGNAL), ==, sizeof record);
}

static ExecWatchRecord
hello_of(const char *where, int32_t rank)
{
    ExecWatchRecord record = {.kind = EXEC_WATCH_HELLO, .rank = rank};

    g_snprintf(record.text, sizeof record.text, "%.*s\nhost\nmachine", EXEC_WATCH_SECRET, where);
    return record;
}

/* Returns: (owned) with what the watch ends. */
static GError *
verdict(ExecWatcher *watcher)
{
    const int64_t begin_us = g_get_monotonic_time();
    GError *error = NULL;

    while (exec_watcher_look(watcher, &error) == EXEC_WATCHER_GOING &&
           g_get_monotonic_time() - begin_us < 2 * G_USEC_PER_SEC)
        g_usleep(1000);
    return error;
}

static void
test_damaged_words_of_a_rank(void)
{
    const ExecWatcherOptions options = {.n_ranks = 2};
    g_autoptr(ExecWatcher) watcher = exec_watcher_new(&options, NULL);
    const char *where = exec_watcher_where(watcher);
    const int fds[2] = {call(where), call(where)};

    for (int32_t r = 0; r < 2; r++)
        say(fds[r], hello_of(where, r), EXEC_WATCH_VERSION, 0);
    const ExecWatchRecord pulse = {.kind = EXEC_WATCH_PULSE, .rank = 1, .text = "F0.0 of step 0"};
    say(fds[1], pulse, EXEC_WATCH_VERSION, 0);
    say(fds[1], pulse, EXEC_WATCH_VERSION, 4);
    g_autoptr(GError) error = verdict(watcher);
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_FAILED);
    g_assert_cmpstr(error->message, ==,
                    "what rank 1 told the watcher of its run was damaged on its way: its checksum "
                    "is not the one that was sent");
    close(fds[0]);
    close(fds[1]);
}

/* Who knows the secret is a rank of this run, and is refused by name; who does not is nobody. */
static void
test_other_versions_are_refused(void)
{
    const ExecWatcherOptions options = {.n_ranks = 2};
    g_autoptr(ExecWatcher) watcher = exec_watcher_new(&options, NULL);
    const char *where = exec_watcher_where(watcher);
    const int stranger = call(where), rank = call(where);
    g_autofree char *wrong = g_strdup(where);
    GError *nothing = NULL;
    char byte;

    wrong[0] = wrong[0] == 'a' ? 'b' : 'a';
    say(stranger, hello_of(wrong, 1), EXEC_WATCH_VERSION + 1, 0);
    for (int i = 0; i < 100 && recv(stranger, &byte, 1, MSG_DONTWAIT) != 0; i++) {
        g_assert_cmpint(exec_watcher_look(watcher, &nothing), ==, EXEC_WATCHER_GOING);
        g_usleep(1000);
    }
    g_assert_cmpint(recv(stranger, &byte, 1, MSG_DONTWAIT), ==, 0);
    say(rank, hello_of(where, 1), EXEC_WATCH_VERSION + 1, 0);
    g_autoptr(GError) error = verdict(watcher);
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_FAILED);
    g_assert_cmpstr(error->message, ==,
                    "rank 1 speaks version 3 to the watcher of its run, which speaks version 2: "
                    "all ranks need the same degas");
    close(stranger);
    close(rank);
}

/* The address of the socket of this machine that listens on @port, as the kernel writes it. */
static char *
address_of_port(unsigned port)
{
    g_autofree char *text = NULL, *wanted = g_strdup_printf(":%04X", port);

    g_assert_true(g_file_get_contents("/proc/net/tcp", &text, NULL, NULL));
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (char **line = lines + 1; *line != NULL && **line != 0; line++) {
        g_auto(GStrv) words = g_strsplit(g_strchug(*line), " ", 5);
        if (g_str_has_suffix(words[1], wanted) && strcmp(words[3], "0A") == 0)
            return g_strndup(words[1], strlen("0100007F"));
    }
    return NULL;
}

/* Other machines reach the watcher's port only where the run has other hosts. */
static void
test_where_it_listens(void)
{
    for (int other_hosts = 0; other_hosts < 2; other_hosts++) {
        const ExecWatcherOptions options = {.n_ranks = 2, .other_hosts = other_hosts != 0};
        g_autoptr(ExecWatcher) watcher = exec_watcher_new(&options, NULL);
        const char *where = exec_watcher_where(watcher);
        g_autofree char *address =
            address_of_port((unsigned)g_ascii_strtoull(strrchr(where, ':') + 1, NULL, 10));

        g_assert_cmpstr(address, ==, other_hosts != 0 ? "00000000" : "0100007F");
        if (other_hosts == 0)
            g_assert_true(g_str_has_prefix(strchr(where, '@'), "@127.0.0.1:"));
    }
}

/* Callers that say nothing, more than a process may have files: ranks are let in all the same. */
static void
test_a_flood_of_callers(void)
{
    const ExecWatcherOptions options = {.n_ranks = 1};
    g_autoptr(ExecWatcher) watcher = exec_watcher_new(&options, NULL);
    const char *where = exec_watcher_where(watcher);
    int callers[300];
    GError *error = NULL;

    for (size_t i = 0; i < G_N_ELEMENTS(callers); i++) {
        callers[i] = call(where);
        g_assert_cmpint(exec_watcher_look(watcher, &error), ==, EXEC_WATCHER_GOING);
    }
    g_autoptr(ExecMember) rank = exec_member_connect(where, 0, &error);
    g_assert_no_error(error);
    ExecWatchRecord done = {.kind = EXEC_WATCH_DONE};
    exec_member_tell(rank, &done);
    ExecWatcherState state = EXEC_WATCHER_GOING;
    for (int i = 0; i < 1000 && state == EXEC_WATCHER_GOING; i++) {
        state = exec_watcher_look(watcher, &error);
        g_usleep(1000);
    }
    g_assert_cmpint(state, ==, EXEC_WATCHER_DONE);
    int n_closed = 0;
    for (size_t i = 0; i < G_N_ELEMENTS(callers); i++) {
        char byte;
        n_closed += recv(callers[i], &byte, 1, MSG_DONTWAIT) == 0;
        close(callers[i]);
    }
    g_assert_cmpint(n_closed, >=, 200);
}

/* The watcher's own words, damaged or of another version. */
static void
test_damaged_words_of_the_watcher(void)
{
    g_autofree char *address = NULL;
    const int listener = exec_addresses_listen(false, 0, &address);
    g_autofree char *where = g_strdup_printf("%032d@%s", 0, address);
    g_autoptr(ExecMember) member = exec_member_connect(where, 5, NULL);
    const ExecWatchRecord stop = {.kind = EXEC_WATCH_STOP};
    const struct {
        uint32_t version;
        unsigned damage;
        ExecOrder order;
        const char *message;
    } cases[] = {
        {EXEC_WATCH_VERSION, 1, EXEC_ORDER_UNREADABLE,
         "what the watcher of this run told rank 5 was damaged on its way: its checksum is not the "
         "one that was sent"},
        {EXEC_WATCH_VERSION - 1, 0, EXEC_ORDER_UNREADABLE,
         "rank 5 speaks version 2 to the watcher of its run, which speaks version 1: all ranks "
         "need the same degas"},
        {EXEC_WATCH_VERSION, 0, EXEC_ORDER_STOP, NULL},
    };

    const int fd = accept(listener, NULL, NULL);
    g_assert_cmpint(fd, >=, 0);
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        say(fd, stop, cases[i].version, cases[i].damage);
        g_assert_cmpint(exec_member_order(member, 2000, &error), ==, cases[i].order);
        g_assert_cmpstr(error == NULL ? NULL : error->message, ==, cases[i].message);
    }
    close(fd);
    close(listener);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/watcher/those-that-do-not-come", test_those_that_do_not_come_are_named);
    g_test_add_func("/watcher/every-bit-of-a-record-counts", test_every_bit_of_a_record_counts);
    g_test_add_func("/watcher/damaged-words-of-a-rank", test_damaged_words_of_a_rank);
    g_test_add_func("/watcher/damaged-words-of-the-watcher", test_damaged_words_of_the_watcher);
    g_test_add_func("/watcher/other-versions", test_other_versions_are_refused);
    g_test_add_func("/watcher/where-it-listens", test_where_it_listens);
    g_test_add_func("/watcher/a-flood-of-callers", test_a_flood_of_callers);
    return g_test_run();
}
