#include "cli/validate/measured.h"
#include "cli/request/output.h"

#include "base/text.h"
#include "models/arch.h"
#include "schedule/schedule.h"

#include <math.h>
#include <string.h>

/* Beyond are typing errors: 11 days; 1 PiB. */
#define MAX_ITERATION_MS 1e9
#define MAX_MEMORY_GIB 1048576.0
#define MAX_NODE_GBPS 1e6
#define MAX_BATCH (INT64_C(1) << 31)
#define BYTES_PER_GIB 1073741824.0

/* --- columns --- */

typedef enum {
    COLUMN_TEXT,
    COLUMN_COUNT,
    COLUMN_VOCAB,  /* a count, or "none..." */
    COLUMN_STAGE,  /* a ZeRO stage; words may follow */
    COLUMN_CHUNKS, /* a count, or "max..." */
    COLUMN_SWITCH, /* true, false; -1: blank */
    COLUMN_FROM_0, /* a count that may be 0; -1: blank */
    COLUMN_MONTH,  /* YYYY-MM */
    COLUMN_NUMBER,
} ColumnKind;

typedef struct {
    const char *name;
    bool needed; /* the file must have it */
    ColumnKind kind;
    size_t offset;
    double max;   /* of a count or number */
    double scale; /* of a number: our unit per the column's */
    const char *unit;
} Column;

#define AT(member) offsetof(MeasuredRow, member)

static const Column columns[] = {
    {"source", true, COLUMN_TEXT, AT(source), 0, 0, NULL},
    {"id", true, COLUMN_TEXT, AT(id), 0, 0, NULL},
    {"gpu", true, COLUMN_TEXT, AT(gpu), 0, 0, NULL},
    {"gpus", true, COLUMN_COUNT, AT(n_devices), 16777216, 0, "devices"},
    {"gpus_per_node", false, COLUMN_COUNT, AT(devices_per_node), 1048576, 0, "devices"},
    {"inter_bw_Gbps", false, COLUMN_NUMBER, AT(node_bits_per_s), MAX_NODE_GBPS, 1e9, "Gbit/s"},
    {"model", true, COLUMN_TEXT, AT(model), 0, 0, NULL},
    {"layers", true, COLUMN_COUNT, AT(n_layers), MODEL_MAX_LAYERS, 0, "layers"},
    {"hidden", true, COLUMN_COUNT, AT(hidden), MODEL_MAX_HIDDEN, 0, "elements"},
    {"heads", true, COLUMN_COUNT, AT(n_heads), MODEL_MAX_HEADS, 0, "heads"},
    {"kv_heads", false, COLUMN_COUNT, AT(n_kv_heads), MODEL_MAX_HEADS, 0, "heads"},
    {"ffn", false, COLUMN_COUNT, AT(ffn_hidden), MODEL_MAX_FFN_HIDDEN, 0, "elements"},
    {"vocab", false, COLUMN_VOCAB, AT(vocab), MODEL_MAX_VOCAB, 0, "tokens"},
    {"seq", true, COLUMN_COUNT, AT(seq_len), MODEL_MAX_SEQ_LEN, 0, "tokens"},
    {"global_batch", true, COLUMN_COUNT, AT(global_batch), MAX_BATCH, 0, "sequences"},
    {"micro_batch", true, COLUMN_COUNT, AT(micro_batch), MAX_BATCH, 0, "sequences"},
    {"num_microbatches", false, COLUMN_COUNT, AT(n_micro_batches), MAX_BATCH, 0, "micro-batches"},
    {"dp", true, COLUMN_COUNT, AT(dp), 16777216, 0, "ranks"},
    {"tp", true, COLUMN_COUNT, AT(tp), SCHEDULE_MAX_RANKS, 0, "ranks"},
    {"pp", true, COLUMN_COUNT, AT(pp), SCHEDULE_MAX_RANKS, 0, "ranks"},
    {"vpp", false, COLUMN_CHUNKS, AT(vpp), SCHEDULE_MAX_CHUNKS, 0, "chunks"},
    {"cp", false, COLUMN_COUNT, AT(cp), SCHEDULE_MAX_RANKS, 0, "ranks"},
    {"ep", false, COLUMN_COUNT, AT(ep), SCHEDULE_MAX_RANKS, 0, "ranks"},
    {"sp", false, COLUMN_SWITCH, AT(sequence_parallel), 0, 0, NULL},
    {"schedule", false, COLUMN_TEXT, AT(schedule), 0, 0, NULL},
    {"recompute", false, COLUMN_TEXT, AT(recompute), 0, 0, NULL},
    {"zero", false, COLUMN_STAGE, AT(zero_stage), 3, 0, NULL},
    {"dtype", false, COLUMN_TEXT, AT(dtype), 0, 0, NULL},
    {"measured_iter_ms", true, COLUMN_NUMBER, AT(iteration_s), MAX_ITERATION_MS, 1e-3,
     "milliseconds"},
    {"measured_mem_GiB", false, COLUMN_NUMBER, AT(memory_bytes), MAX_MEMORY_GIB, BYTES_PER_GIB,
     "GiB"},
    {"notes", false, COLUMN_TEXT, AT(notes), 0, 0, NULL},
    {"status", false, COLUMN_TEXT, AT(status), 0, 0, NULL},
    {"dense_layers", false, COLUMN_FROM_0, AT(dense_layers), MODEL_MAX_LAYERS, 0, "layers"},
    {"moe_experts", false, COLUMN_COUNT, AT(n_experts), MODEL_MAX_EXPERTS, 0, "experts"},
    {"moe_topk", false, COLUMN_COUNT, AT(top_k), MODEL_MAX_EXPERTS, 0, "experts"},
    {"moe_ffn", false, COLUMN_COUNT, AT(expert_ffn), MODEL_MAX_FFN_HIDDEN, 0, "elements"},
    {"moe_shared", false, COLUMN_FROM_0, AT(n_shared), MODEL_MAX_EXPERTS, 0, "experts"},
    {"mtp_layers", false, COLUMN_FROM_0, AT(n_mtp), MODEL_MAX_LAYERS, 0, "layers"},
    {"head_dim", false, COLUMN_COUNT, AT(head_dim), MODEL_MAX_HIDDEN, 0, "elements"},
    {"etp", false, COLUMN_COUNT, AT(expert_tp), SCHEDULE_MAX_RANKS, 0, "ranks"},
    {"fsdp", false, COLUMN_SWITCH, AT(fsdp), 0, 0, NULL},
    {"dp_overlap", false, COLUMN_SWITCH, AT(overlap_dp), 0, 0, NULL},
    {"tp_overlap", false, COLUMN_SWITCH, AT(overlap_tp), 0, 0, NULL},
    {"ep_overlap", false, COLUMN_SWITCH, AT(overlap_ep), 0, 0, NULL},
    {"peft", false, COLUMN_TEXT, AT(peft), 0, 0, NULL},
    {"lora_rank", false, COLUMN_COUNT, AT(lora_rank), MODEL_MAX_LORA_RANK, 0, "rows"},
    {"lora_modules", false, COLUMN_TEXT, AT(lora_modules), 0, 0, NULL},
    {"recompute_modules", false, COLUMN_TEXT, AT(recompute_modules), 0, 0, NULL},
    {"pp_layout", false, COLUMN_TEXT, AT(pp_layout), 0, 0, NULL},
    {"cuda_graphs", false, COLUMN_TEXT, AT(cuda_graphs), 0, 0, NULL},
    {"dispatcher", false, COLUMN_TEXT, AT(dispatcher), 0, 0, NULL},
    {"grad_dtype", false, COLUMN_TEXT, AT(grad_dtype), 0, 0, NULL},
    {"fused_ce", false, COLUMN_TEXT, AT(fused_ce), 0, 0, NULL},
    {"attention_impl", false, COLUMN_TEXT, AT(attention_impl), 0, 0, NULL},
    {"rank_order", false, COLUMN_TEXT, AT(rank_order), 0, 0, NULL},
    {"slices_kind", false, COLUMN_TEXT, AT(slices_kind), 0, 0, NULL},
    {"stack_date", false, COLUMN_MONTH, AT(stack_date), 0, 0, NULL},
};

#define N_COLUMNS G_N_ELEMENTS(columns)

/* --- one field --- */

/* Digits and nothing else. */
static bool
read_count(const char *text, double max, int64_t *value)
{
    gint64 number;

    if (!g_ascii_string_to_signed(text, 10, 0, (gint64)max, &number, NULL))
        return false;
    *value = number;
    return true;
}

/* Digits, a point, an exponent: no sign, no unit, no nan. */
static bool
read_number(const char *text, double max, double *value)
{
    char *end;

    if (!g_ascii_isdigit(*text) || text[strspn(text, "0123456789.eE+-")] != 0)
        return false;
    *value = g_ascii_strtod(text, &end);
    return *end == 0 && *value > 0.0 && *value <= max;
}

static bool
is_month(const char *text)
{
    static const char form[] = "dddd-dd";
    size_t i = 0;

    while (form[i] != 0 && (form[i] == 'd' ? g_ascii_isdigit(text[i]) : text[i] == form[i]))
        i++;
    return i == strlen(form) && text[i] == 0 && strcmp(text + 5, "01") >= 0 &&
           strcmp(text + 5, "12") <= 0;
}

/* Returns: (owned) what a field of this column should have been, for a message. */
static char *
expectation(const Column *column)
{
    switch (column->kind) {
    case COLUMN_NUMBER:
        return g_strdup_printf("a number of %s, without its unit", column->unit);
    case COLUMN_STAGE:
        return g_strdup("a ZeRO stage from 0 to 3");
    case COLUMN_SWITCH:
        return g_strdup("true or false");
    case COLUMN_MONTH:
        return g_strdup("a month as YYYY-MM");
    default:
        return g_strdup_printf("a number of %s", column->unit);
    }
}

static bool
read_field(const Column *column, const char *text, MeasuredRow *row)
{
    char *member = (char *)row + column->offset;
    const bool blank = *text == 0;
    int64_t *count = (int64_t *)(void *)member;

    switch (column->kind) {
    case COLUMN_TEXT:
        if (column->offset == AT(status))
            row->status = blank || strcmp(text, "ok") == 0 ? MEASURED_STATUS_OK
                          : strcmp(text, "oom") == 0       ? MEASURED_STATUS_OOM
                                                           : MEASURED_STATUS_OTHER;
        else
            *(const char **)(void *)member = text;
        return true;
    case COLUMN_COUNT:
        return blank || (read_count(text, column->max, count) && *count > 0);
    case COLUMN_VOCAB:
        *count = g_str_has_prefix(text, "none") ? 0 : -1;
        return blank || *count == 0 || read_count(text, column->max, count);
    case COLUMN_CHUNKS:
        /* "max": one layer a chunk; the stages are then the notes' matter. */
        return blank || g_str_has_prefix(text, "max") || read_count(text, column->max, count);
    case COLUMN_STAGE:
        row->zero_stage = -1;
        if (blank || g_str_has_prefix(text, "FSDP"))
            return true;
        row->zero_stage = *text - '0';
        return *text >= '0' && *text <= '3' && (text[1] == 0 || text[1] == ' ');
    case COLUMN_SWITCH:
        *(int *)(void *)member = blank ? -1 : strcmp(text, "true") == 0;
        return blank || strcmp(text, "true") == 0 || strcmp(text, "false") == 0;
    case COLUMN_FROM_0:
        *count = -1;
        return blank || read_count(text, column->max, count);
    case COLUMN_MONTH:
        *(const char **)(void *)member = text;
        return blank || is_month(text);
    case COLUMN_NUMBER: {
        double *number = (double *)(void *)member;

        *number = NAN;
        if (blank)
            return true;
        if (!read_number(text, column->max, number))
            return false;
        *number *= column->scale;
        return true;
    }
    }
    g_return_val_if_reached(false);
}

/* --- one row --- */

/* (owned, nullable) what contradicts itself. */
static char *
contradiction(const MeasuredRow *row)
{
    const int64_t cp = MAX(1, row->cp);
    int64_t ranks;

    if (row->id[0] == 0)
        return g_strdup("id: is blank");
    if (row->dp > 0 && row->tp > 0 && row->pp > 0 && row->n_devices > 0) {
        if (__builtin_mul_overflow(row->dp * row->tp, row->pp * cp, &ranks) ||
            ranks != row->n_devices)
            return g_strdup_printf("gpus: dp x tp x pp x cp is not " INT, row->n_devices);
    }
    if (row->dp > 0 && row->micro_batch > 0 && row->global_batch > 0 &&
        (row->global_batch % row->dp != 0 || row->global_batch / row->dp % row->micro_batch != 0))
        return g_strdup("global_batch: is no multiple of dp x micro_batch");
    if (row->n_micro_batches > 0 && row->dp > 0 && row->micro_batch > 0 && row->global_batch > 0 &&
        row->global_batch / row->dp / row->micro_batch != row->n_micro_batches)
        return g_strdup_printf("num_microbatches: global_batch / dp / micro_batch is " INT,
                               row->global_batch / row->dp / row->micro_batch);
    if (row->status == MEASURED_STATUS_OOM && isfinite(row->iteration_s))
        return g_strdup("measured_iter_ms: a run that ended for want of memory has no time");
    return NULL;
}

/* Returns: (owned, nullable) what is wrong with record @i. */
static char *
read_row(const Csv *csv, size_t i, const int places[N_COLUMNS], MeasuredRow *row)
{
    *row = (MeasuredRow){.line = csv_line(csv, i), .status = MEASURED_STATUS_OK};
    for (size_t c = 0; c < N_COLUMNS; c++) {
        const char *text = places[c] < 0 ? "" : csv_field(csv, i, (size_t)places[c]);

        if (!read_field(&columns[c], text, row)) {
            g_autofree char *expected = expectation(&columns[c]);
            g_autofree char *shown = text_escape(text, 40);

            return g_strdup_printf("%s: expected %s, got \"%s\"", columns[c].name, expected, shown);
        }
    }
    return contradiction(row);
}

/* --- the table --- */

bool
measured_is_table_of_runs(const Csv *csv)
{
    return csv_column(csv, "measured_iter_ms") >= 0 && csv_column(csv, "global_batch") >= 0;
}

/* A column that is missing, and what may have been meant by an unknown one. */
static bool
find_columns(const Csv *csv, int places[N_COLUMNS], GError **error)
{
    for (size_t c = 0; c < N_COLUMNS; c++) {
        g_autoptr(GPtrArray) names = g_ptr_array_new();

        places[c] = csv_column(csv, columns[c].name);
        if (places[c] >= 0 || !columns[c].needed)
            continue;
        for (size_t i = 0; i < csv_n_columns(csv); i++)
            g_ptr_array_add(names, (char *)csv_column_name(csv, i));
        g_ptr_array_add(names, NULL);
        g_autofree char *hint = text_suggestion(columns[c].name, (const char *const *)names->pdata);
        g_set_error(error, CSV_ERROR, CSV_ERROR_INVALID, "%s:1: column \"%s\" is missing%s",
                    csv_name(csv), columns[c].name, hint);
        return false;
    }
    return true;
}

MeasuredTable *
measured_load(const char *path, GPtrArray *bad_rows, GError **error)
{
    g_autoptr(MeasuredTable) table = g_new0(MeasuredTable, 1);
    int places[N_COLUMNS];

    table->rows = g_array_new(FALSE, TRUE, sizeof(MeasuredRow));
    table->csv = csv_load(path, bad_rows, error);
    if (table->csv == NULL || !find_columns(table->csv, places, error))
        return NULL;
    for (size_t i = 0; i < csv_n_records(table->csv); i++) {
        MeasuredRow row;
        g_autofree char *wrong = read_row(table->csv, i, places, &row);

        if (wrong == NULL) {
            g_array_append_val(table->rows, row);
        } else if (bad_rows == NULL) {
            g_set_error(error, CSV_ERROR, CSV_ERROR_INVALID, "%s:%zu: %s", path, row.line, wrong);
            return NULL;
        } else {
            g_ptr_array_add(bad_rows, g_strdup_printf("%s:%zu: %s", path, row.line, wrong));
        }
    }
    return g_steal_pointer(&table);
}

void
measured_free(MeasuredTable *table)
{
    if (table == NULL)
        return;
    csv_free(table->csv);
    g_array_unref(table->rows);
    g_free(table);
}

char *
measured_note(const char *notes, const char *key)
{
    const size_t n_key = strlen(key);

    for (const char *p = strstr(notes, key); p != NULL; p = strstr(p + 1, key)) {
        const bool begins = p == notes || strchr("; (", p[-1]) != NULL;

        if (begins && p[n_key] == '=') {
            const char *value = p + n_key + 1;
            const char *end = strstr(value, "; ");

            return g_strstrip(end == NULL ? g_strdup(value)
                                          : g_strndup(value, (gsize)(end - value)));
        }
    }
    return NULL;
}

char *
measured_text(const MeasuredRow *row, const char *name)
{
    for (size_t c = 0; c < N_COLUMNS; c++) {
        const void *member = (const char *)row + columns[c].offset;

        if (strcmp(columns[c].name, name) != 0)
            continue;
        if (columns[c].kind == COLUMN_TEXT || columns[c].kind == COLUMN_MONTH)
            return g_strdup(*(const char *const *)member);
        if (columns[c].kind == COLUMN_SWITCH) {
            const int value = *(const int *)member;

            return value < 0 ? NULL : g_strdup(value == 1 ? "true" : "false");
        }
        g_return_val_if_fail(columns[c].kind == COLUMN_COUNT, NULL);
        return *(const int64_t *)member == 0 ? NULL
                                             : g_strdup_printf(INT, *(const int64_t *)member);
    }
    return measured_note(row->notes, name);
}

bool
measured_note_is(const MeasuredRow *row, const char *key, const char *value)
{
    g_autofree char *note = measured_note(row->notes, key);

    return note != NULL && strcmp(note, value) == 0;
}

int64_t
measured_note_count(const MeasuredRow *row, const char *key, int64_t fallback)
{
    g_autofree char *note = measured_note(row->notes, key);

    return note == NULL ? fallback : g_ascii_strtoll(note, NULL, 10);
}

int64_t
measured_count(const MeasuredRow *row, int64_t stated, const char *key, int64_t fallback)
{
    return stated > 0 ? stated : measured_note_count(row, key, fallback);
}
