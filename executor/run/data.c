#include "executor/run/data.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/units.h"
#include "executor/model/random.h"

struct ExecData {
    char *path; /* (owned, nullable) */
    int fd;     /* -1: synthetic */
    int64_t token_bytes;
    int64_t n_tokens, vocab, seq_len;
    int64_t n; /* tokens of a sequence, with those ahead */
    uint64_t key;
};

/* Sets @error to what the errno @code says.  Returns false. */
static bool
failed(GError **error, const char *path, const char *what, int code)
{
    g_set_error(error, G_FILE_ERROR, (int)g_file_error_from_errno(code), "%s: %s: %s", path, what,
                g_strerror(code));
    return false;
}

/* Reads exactly @n bytes from @offset on. */
static bool
read_at(const ExecData *data, int64_t offset, size_t n, void *to, GError **error)
{
    const int code = file_move(data->fd, false, to, n, offset);

    if (code < 0)
        return EXEC_FAIL(error, EXEC_ERROR_DATA, "%s: the file became shorter while it was read",
                         data->path);
    return code == 0 || failed(error, data->path, "cannot read training data", code);
}

static inline int32_t
token_at(const ExecData *data, const uint8_t *raw, int64_t i)
{
    return data->token_bytes == 1 ? raw[i] : raw[2 * i] | raw[2 * i + 1] << 8;
}

static bool
check_token(const ExecData *data, int32_t token, int64_t at, GError **error)
{
    if (token < data->vocab)
        return true;
    return EXEC_FAIL(error, EXEC_ERROR_DATA,
                     "%s: token %d at %s " INT " is beyond the model's vocabulary of " INT,
                     data->path, token, data->token_bytes == 1 ? "byte" : "token", at, data->vocab);
}

static bool
scan(const ExecData *data, GError **error)
{
    const int64_t chunk = 1 << 20;
    g_autofree uint8_t *raw = g_malloc((size_t)(chunk * data->token_bytes));

    if (data->vocab >= (data->token_bytes == 1 ? 256 : 65536) ||
        data->n_tokens > EXEC_DATA_SCAN_BYTES / data->token_bytes)
        return true;
    for (int64_t at = 0; at < data->n_tokens; at += chunk) {
        const int64_t n = MIN(chunk, data->n_tokens - at);
        if (!read_at(data, at * data->token_bytes, (size_t)(n * data->token_bytes), raw, error))
            return false;
        for (int64_t i = 0; i < n; i++)
            if (!check_token(data, token_at(data, raw, i), at + i, error))
                return false;
    }
    return true;
}

/* Opens the file, and finds how many tokens it has. */
static bool
open_file(ExecData *data, GError **error)
{
    struct stat status;

    data->token_bytes = g_str_has_suffix(data->path, ".bin") ? 2 : 1;
    data->fd = g_open(data->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (data->fd < 0 || fstat(data->fd, &status) != 0)
        return failed(error, data->path, "cannot open training data", errno);
    if (!S_ISREG(status.st_mode))
        return EXEC_FAIL(error, EXEC_ERROR_DATA, "%s: training data must be a regular file%s",
                         data->path, S_ISDIR(status.st_mode) ? ", this is a directory" : "");
    if (data->token_bytes == 2 && status.st_size % 2 != 0)
        return EXEC_FAIL(error, EXEC_ERROR_DATA,
                         "%s: a .bin file holds tokens of 2 bytes, this one has " INT " bytes",
                         data->path, (int64_t)status.st_size);
    data->n_tokens = (int64_t)status.st_size / data->token_bytes;
    return true;
}

ExecData *
exec_data_open(const char *path, int64_t vocab, int64_t seq_len, int64_t n_ahead, uint64_t seed,
               GError **error)
{
    g_return_val_if_fail(vocab >= 1 && seq_len >= 1 && n_ahead >= 1, NULL);
    g_autoptr(ExecData) data = g_new0(ExecData, 1);

    data->path = g_strdup(path);
    data->fd = -1;
    data->vocab = vocab;
    data->seq_len = seq_len;
    data->n = seq_len + n_ahead;
    data->n_tokens = INT64_MAX;
    data->key = exec_random_key(seed, "data");
    if (path == NULL)
        return g_steal_pointer(&data);
    if (!open_file(data, error))
        return NULL;
    if (data->n_tokens < data->n)
        return EXEC_FAIL_NULL(error, EXEC_ERROR_DATA,
                              "%s: " INT " tokens are too few: a sequence of " INT
                              " needs at least " INT,
                              path, data->n_tokens, seq_len, data->n);
    if (!scan(data, error))
        return NULL;
    return g_steal_pointer(&data);
}

void
exec_data_free(ExecData *data)
{
    if (data == NULL)
        return;
    if (data->fd >= 0)
        close(data->fd);
    g_free(data->path);
    g_free(data);
}

/* Seven of eight tokens are the one before plus 1; the others, and the first, are random. */
static void
synthesize(const ExecData *data, uint64_t key, int32_t *tokens)
{
    const uint64_t vocab = (uint64_t)data->vocab;
    uint64_t token = random_at(key, 0) % vocab;

    for (int64_t i = 0; i < data->n; i++) {
        const uint64_t draw = random_at(key, (uint64_t)i + 1);
        tokens[i] = (int32_t)token;
        token = draw % 8 == 0 ? (draw >> 3) % vocab : (token + 1) % vocab;
    }
}

bool
exec_data_sequence(const ExecData *data, int64_t step, int64_t index, int32_t *tokens,
                   GError **error)
{
    const uint64_t key = random_at(random_at(data->key, (uint64_t)step), (uint64_t)index);

    if (data->fd < 0) {
        synthesize(data, key, tokens);
        return true;
    }
    const int64_t begin = (int64_t)(key % (uint64_t)(data->n_tokens - data->n + 1));
    const size_t n_bytes = (size_t)(data->n * data->token_bytes);
    g_autofree uint8_t *raw = g_malloc(n_bytes);
    if (!read_at(data, begin * data->token_bytes, n_bytes, raw, error))
        return false;
    for (int64_t i = 0; i < data->n; i++) {
        tokens[i] = token_at(data, raw, i);
        if (!check_token(data, tokens[i], begin + i, error))
            return false;
    }
    return true;
}
