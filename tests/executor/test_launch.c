/* Tests of executor/watch/launch.h: which rank a process is, and where ranks meet, by the variables
 * that launchers set.  The values of Slurm are those of slurm-wlm 22.05. */
#include "executor/watch/launch.h"

#include <string.h>

/* Variables as "A=1 B=2". */
static char **
environment_of(const char *text)
{
    return g_strsplit(text, " ", -1);
}

#define MPIRUN "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4"
/* What a task of `srun -N2 -n4` has, and the shell of a job, which is no task. */
#define JOB "SLURM_JOB_ID=812 SLURM_JOB_NODELIST=n[1-2] SLURM_NTASKS=4 "
#define TASK JOB "SLURM_STEP_ID=2 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NODELIST=n[1-2]"
#define SHELL JOB "SLURM_PROCID=0"

static void
test_the_rank(void)
{
    static const struct {
        const char *environment;
        ExecRole role;
        int32_t rank, n_ranks;
        bool has_mpi;
    } cases[] = {
        {"HOME=/root", EXEC_ROLE_ALONE, 0, 1, false},
        {MPIRUN, EXEC_ROLE_JOINED, 3, 4, true},
        {MPIRUN " DEGAS_WATCH=s@h:1", EXEC_ROLE_LAUNCHED, 3, 4, true},
        {"PMI_RANK=1 PMI_SIZE=2", EXEC_ROLE_JOINED, 1, 2, true},
        {TASK, EXEC_ROLE_JOINED, 3, 4, false},
        {TASK " PMIX_RANK=3", EXEC_ROLE_JOINED, 3, 4, true},
        {SHELL, EXEC_ROLE_ALONE, 0, 1, false},
        /* A step of its own size within a job of another. */
        {JOB "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2", EXEC_ROLE_JOINED, 1, 2, false},
        {JOB "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1", EXEC_ROLE_ALONE, 0, 1, false},
        {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=n1", EXEC_ROLE_JOINED, 1, 2, false},
        {"RANK=1 WORLD_SIZE=2", EXEC_ROLE_ALONE, 0, 1, false},
        {"RANK=2 WORLD_SIZE=2 MASTER_ADDR=n1", EXEC_ROLE_ALONE, 0, 1, false},
        {"RANK=-1 WORLD_SIZE=x MASTER_ADDR=n1", EXEC_ROLE_ALONE, 0, 1, false},
        /* torchrun on every node, which srun has started. */
        {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 RANK=9 WORLD_SIZE=16 MASTER_ADDR=n1",
         EXEC_ROLE_JOINED, 9, 16, false},
        {"DEGAS_RANK=1 DEGAS_RANKS=2 DEGAS_WATCH=s@h:1 " TASK, EXEC_ROLE_LAUNCHED, 1, 2, false},
        {"DEGAS_START=2 DEGAS_WATCH=s@h:1", EXEC_ROLE_STARTER, 0, 1, false},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(GStrv) environment = environment_of(cases[i].environment);
        const ExecJobRank got = exec_job_rank_of(environment);

        g_test_message("%s", cases[i].environment);
        g_assert_cmpint(got.role, ==, cases[i].role);
        g_assert_cmpint(got.rank, ==, cases[i].rank);
        g_assert_cmpint(got.n_ranks, ==, cases[i].n_ranks);
        g_assert_cmpint(got.has_mpi, ==, cases[i].has_mpi);
        g_assert_true(got.role != EXEC_ROLE_JOINED || got.launcher != NULL);
    }
}

static void
test_the_meeting(void)
{
    static const struct {
        const char *environment, *where; /* NULL: refused */
    } cases[] = {
        {TASK, "n1:22994"}, /* 20000 + (812 * 16 + 2) mod 10000 */
        {TASK " SLURM_STEP_RESV_PORTS=12000-12003", "n1:12000"},
        {TASK " MASTER_PORT=29500", "n1:29500"},
        {TASK " MASTER_ADDR=head MASTER_PORT=29500", "head:29500"},
        {"MASTER_ADDR=n1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=x", "n1:29501"},
        {"SLURM_JOB_NODELIST=n[01-04,7],m2 MASTER_PORT=1", "n01:1"},
        {"SLURM_JOB_NODELIST=gpu7 MASTER_PORT=1", "gpu7:1"},
        {"SLURM_JOB_NODELIST=r[1-2]n[03-04]-ib MASTER_PORT=1", "r1n03-ib:1"},
        {"SLURM_JOB_NODELIST=a[ MASTER_PORT=1", "a:1"},
        {"SLURM_JOB_NODELIST=a[9 MASTER_PORT=1", "a9:1"},
        {"SLURM_JOB_NODELIST= MASTER_PORT=1", NULL},
        {"MASTER_PORT=29500", NULL},
        {"MASTER_ADDR=n1 MASTER_PORT=65535 TORCHELASTIC_RUN_ID=x", NULL},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(GStrv) environment = environment_of(cases[i].environment);
        g_autoptr(GError) error = NULL;
        g_autofree char *meeting = exec_job_meeting_of(environment, &error);

        g_test_message("%s", cases[i].environment);
        if (cases[i].where == NULL) {
            g_assert_error(error, EXEC_ERROR, EXEC_ERROR_MISSING);
            continue;
        }
        g_assert_no_error(error);
        g_assert_nonnull(strchr(meeting, '@'));
        g_assert_cmpstr(strchr(meeting, '@') + 1, ==, cases[i].where);
    }
}

/* Ranks of one step know the same name, and those of another step do not. */
static void
test_steps_have_names_of_their_own(void)
{
    g_auto(GStrv) one = environment_of(TASK);
    g_auto(GStrv) same = environment_of(TASK " SLURM_LOCALID=1 SLURM_NODEID=1");
    g_auto(GStrv) other = environment_of(TASK " SLURM_RESTART_COUNT=1");
    g_autofree char *a = exec_job_meeting_of(one, NULL), *b = exec_job_meeting_of(same, NULL),
                    *c = exec_job_meeting_of(other, NULL);

    g_assert_cmpstr(a, ==, b);
    g_assert_cmpstr(a, !=, c);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/launch/the-rank", test_the_rank);
    g_test_add_func("/executor/launch/the-meeting", test_the_meeting);
    g_test_add_func("/executor/launch/steps-have-names-of-their-own",
                    test_steps_have_names_of_their_own);
    return g_test_run();
}
