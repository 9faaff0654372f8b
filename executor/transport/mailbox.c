#include "executor/transport/mailbox.h"

#include <stdlib.h>
#include <string.h>

/* --- lifecycle --- */

void
exec_mailbox_init(ExecMailbox *box)
{
    *box = (ExecMailbox){0};
    g_mutex_init(&box->mutex);
    g_cond_init(&box->changed);
    box->last = &box->first;
    atomic_init(&box->n_changes, 0);
    atomic_init(&box->waiting_for, EXEC_NOT_WAITING);
    atomic_init(&box->waited_until_ns, 0);
}

static void
free_mail(ExecMail *mail)
{
    while (mail != NULL) {
        ExecMail *next = mail->next;
        free(mail);
        mail = next;
    }
}

static void
free_awaited(ExecMailbox *box)
{
    while (box->awaited != NULL)
        exec_mailbox_take_awaited(box, box->awaited);
}

void
exec_mailbox_clear(ExecMailbox *box)
{
    free_mail(box->first);
    free_mail(box->spare);
    free_awaited(box);
    g_mutex_clear(&box->mutex);
    g_cond_clear(&box->changed);
}

/* The mutex is held.  Who spins needs no system call. */
static void
tell(ExecMailbox *box)
{
    atomic_fetch_add(&box->n_changes, 1);
    if (box->n_sleeping > 0)
        g_cond_broadcast(&box->changed);
}

void
exec_mailbox_sleep(ExecMailbox *box, int64_t until_us)
{
    box->n_sleeping++;
    g_cond_wait_until(&box->changed, &box->mutex, until_us);
    box->n_sleeping--;
}

/* --- messages --- */

static ExecMail *
allocate(int64_t n_bytes, GError **error)
{
    const size_t size = (sizeof(ExecMail) + (size_t)n_bytes + 63) / 64 * 64;
    ExecMail *mail = aligned_alloc(64, size);

    if (mail == NULL)
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY,
                    "no memory for a message of %" G_GINT64_FORMAT " bytes", n_bytes);
    return mail;
}

/* The smallest spare that has room, not more than four times as much, else new. */
static ExecMail *
copied_mail(ExecMailbox *box, const ExecMail *header, const void *data, GError **error)
{
    const int64_t n_bytes = header->n_bytes;
    ExecMail **best = NULL;

    g_mutex_lock(&box->mutex);
    for (ExecMail **at = &box->spare; *at != NULL; at = &(*at)->next)
        if ((*at)->room_bytes >= n_bytes && (*at)->room_bytes <= 4 * n_bytes &&
            (best == NULL || (*at)->room_bytes < (*best)->room_bytes))
            best = at;
    ExecMail *mail = best == NULL ? NULL : *best;
    if (mail != NULL)
        *best = mail->next;
    g_mutex_unlock(&box->mutex);
    const int64_t room_bytes = mail == NULL ? n_bytes : mail->room_bytes;
    if (mail == NULL) {
        mail = allocate(n_bytes, error);
        if (mail == NULL)
            return NULL;
        g_mutex_lock(&box->mutex);
        box->buffer_bytes += n_bytes;
        g_mutex_unlock(&box->mutex);
    }
    *mail = *header;
    mail->room_bytes = room_bytes;
    if (n_bytes > 0)
        memcpy(mail->data, data, (size_t)n_bytes);
    return mail;
}

/* Enters it among the sender's loans. */
static ExecMail *
lent_mail(ExecMailbox *from, const ExecMail *header, const void *data, GError **error)
{
    ExecMail *mail = allocate(0, error);

    if (mail == NULL)
        return NULL;
    *mail = *header;
    mail->lent = data;
    g_mutex_lock(&from->mutex);
    mail->next_loan = from->loans;
    from->loans = mail;
    g_mutex_unlock(&from->mutex);
    return mail;
}

static void
return_loan(ExecMailbox *from, ExecMail *mail)
{
    g_mutex_lock(&from->mutex);
    for (ExecMail **at = &from->loans; *at != NULL; at = &(*at)->next_loan)
        if (*at == mail) {
            *at = mail->next_loan;
            break;
        }
    tell(from);
    g_mutex_unlock(&from->mutex);
    free(mail);
}

const void *
exec_mail_data(const ExecMail *mail)
{
    return mail->lent != NULL ? mail->lent : mail->data;
}

void
exec_mailbox_dispose(ExecMailbox *boxes, ExecMail *mail)
{
    ExecMailbox *box = &boxes[mail->to];

    if (mail->lent != NULL) {
        return_loan(&boxes[mail->from], mail);
        return;
    }
    g_mutex_lock(&box->mutex);
    mail->next = box->spare;
    box->spare = mail;
    g_mutex_unlock(&box->mutex);
}

/* --- places --- */

/* The first place that awaits such a message, now spoken for; the mutex is held. */
static ExecAwaited *
claim_place(ExecMailbox *box, const ExecMail *header)
{
    for (ExecAwaited *a = box->awaited; a != NULL; a = a->next)
        if (!a->filling && a->from == header->from && a->tag == header->tag) {
            a->filling = true;
            return a;
        }
    return NULL;
}

/* A message of another length is an error of the receiver's to report. */
static void
fill(ExecMailbox *box, ExecAwaited *destination, const void *data, int64_t n_bytes)
{
    if (n_bytes == destination->n_bytes && n_bytes > 0)
        memcpy(destination->data, data, (size_t)n_bytes);
    g_mutex_lock(&box->mutex);
    destination->got_bytes = n_bytes;
    tell(box);
    g_mutex_unlock(&box->mutex);
}

/* At the end of the queue, unless a place awaits it: that. */
static ExecAwaited *
enqueue(ExecMailbox *box, ExecMail *mail)
{
    g_mutex_lock(&box->mutex);
    ExecAwaited *destination = claim_place(box, mail);
    if (destination == NULL) {
        mail->next = NULL;
        *box->last = mail;
        box->last = &mail->next;
        tell(box);
    }
    g_mutex_unlock(&box->mutex);
    return destination;
}

bool
exec_mailbox_put(ExecMailbox *boxes, const ExecMail *header, const void *data, bool lend,
                 GError **error)
{
    ExecMailbox *box = &boxes[header->to];

    g_mutex_lock(&box->mutex);
    ExecAwaited *destination = claim_place(box, header);
    g_mutex_unlock(&box->mutex);
    if (destination != NULL) {
        fill(box, destination, data, header->n_bytes);
        return true;
    }
    ExecMail *mail = lend ? lent_mail(&boxes[header->from], header, data, error)
                          : copied_mail(box, header, data, error);
    if (mail == NULL)
        return false;
    /* Its place may have been named meanwhile. */
    destination = enqueue(box, mail);
    if (destination != NULL) {
        fill(box, destination, data, header->n_bytes);
        exec_mailbox_dispose(boxes, mail);
    }
    return true;
}

/* Takes *at, unless it is the end, out of the queue; the mutex is held. */
static ExecMail *
unqueue(ExecMailbox *box, ExecMail **at)
{
    ExecMail *mail = *at;

    if (mail == NULL)
        return NULL;
    *at = mail->next;
    if (mail->next == NULL)
        box->last = at;
    return mail;
}

ExecMail *
exec_mailbox_find(ExecMailbox *box, int32_t from, int64_t tag)
{
    ExecMail **at = &box->first;

    while (*at != NULL && ((*at)->from != from || (*at)->tag != tag))
        at = &(*at)->next;
    return unqueue(box, at);
}

void
exec_mailbox_expect(ExecMailbox *boxes, int32_t rank, const ExecMail *header, void *data)
{
    ExecMailbox *box = &boxes[rank];
    ExecAwaited *destination = g_new(ExecAwaited, 1);
    ExecAwaited **at = &box->awaited;

    g_mutex_lock(&box->mutex);
    ExecMail *mail = exec_mailbox_find(box, header->from, header->tag);
    *destination = (ExecAwaited){
        .tag = header->tag,
        .n_bytes = header->n_bytes,
        .got_bytes = -1,
        .from = header->from,
        .filling = mail != NULL,
        .data = data,
    };
    while (*at != NULL)
        at = &(*at)->next;
    *at = destination;
    g_mutex_unlock(&box->mutex);
    if (mail == NULL)
        return;
    fill(box, destination, exec_mail_data(mail), mail->n_bytes);
    exec_mailbox_dispose(boxes, mail);
}

ExecAwaited *
exec_mailbox_awaited(ExecMailbox *box, int32_t from, int64_t tag, const void *data)
{
    ExecAwaited *destination = box->awaited;

    while (destination != NULL &&
           (destination->from != from || destination->tag != tag || destination->data != data))
        destination = destination->next;
    return destination;
}

void
exec_mailbox_take_awaited(ExecMailbox *box, ExecAwaited *awaited)
{
    ExecAwaited **at = &box->awaited;

    while (*at != awaited)
        at = &(*at)->next;
    *at = awaited->next;
    g_free(awaited);
}

/* --- memory that others touch --- */

int32_t
exec_mailbox_borrower(const ExecMailbox *box, const void *data, int64_t n_bytes)
{
    const char *begin = data;

    for (const ExecMail *mail = box->loans; mail != NULL; mail = mail->next_loan)
        if (data == NULL || (mail->lent < begin + n_bytes && begin < mail->lent + mail->n_bytes))
            return mail->to;
    return EXEC_NOT_WAITING;
}

/* Takes @rank's loans back from the queue of @box. */
static void
call_in(ExecMailbox *boxes, ExecMailbox *box, int32_t rank)
{
    for (;;) {
        g_mutex_lock(&box->mutex);
        ExecMail **at = &box->first;
        while (*at != NULL && ((*at)->from != rank || (*at)->lent == NULL))
            at = &(*at)->next;
        ExecMail *mail = unqueue(box, at);
        g_mutex_unlock(&box->mutex);
        if (mail == NULL)
            return;
        return_loan(&boxes[rank], mail);
    }
}

static bool
is_being_filled(const ExecMailbox *box)
{
    const ExecAwaited *destination = box->awaited;

    while (destination != NULL && (!destination->filling || destination->got_bytes >= 0))
        destination = destination->next;
    return destination != NULL;
}

void
exec_mailbox_withdraw(ExecMailbox *boxes, int32_t n_ranks, int32_t rank)
{
    ExecMailbox *own = &boxes[rank];

    for (int32_t i = 0; i < n_ranks; i++)
        call_in(boxes, &boxes[i], rank);
    /* What is left is being copied. */
    g_mutex_lock(&own->mutex);
    while (is_being_filled(own) || own->loans != NULL)
        exec_mailbox_sleep(own, INT64_MAX);
    free_awaited(own);
    g_mutex_unlock(&own->mutex);
}
