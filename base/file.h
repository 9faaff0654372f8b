/*
 * base/file.h - whole files in, whole files out.
 *
 * A file written here is complete or absent: it is written aside, synced and renamed.  An existing
 * target that is no regular file (/dev/null, a FIFO) is written to directly instead of replaced.
 * Knows nothing of what is in a file.  Large files are read and written piece by piece by their
 * owners, with file_move().
 *
 * Errors are G_FILE_ERROR of GLib with the path in the message.
 */
#pragma once

#include <glib.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Inputs beyond this are refused before they are read (a hostile /dev/zero, say). */
#define FILE_MAX_BYTES (256u * 1024 * 1024)

/*
 * Reads all of @path; "-" is standard input.  A directory, an unreadable file and a file beyond
 * FILE_MAX_BYTES are errors (G_FILE_ERROR_ISDIR, ..., G_FILE_ERROR_FAILED).
 * @contents  (out, owned) NUL-terminated; @n_bytes does not count the NUL.
 */
bool file_read(const char *path, char **contents, size_t *n_bytes, GError **error);

/* As file_read() with a smaller limit, <= FILE_MAX_BYTES. */
bool file_read_max(const char *path, size_t max_bytes, char **contents, size_t *n_bytes,
                   GError **error);

/*
 * Writes @n_bytes of @data to @path, whole or not at all.  On error the old file, if any, is
 * untouched and no temporary file is left; SIGHUP, SIGINT, SIGQUIT and SIGTERM wait in this thread
 * until it is whole, and only SIGKILL may leave one (".degas-PID-N.tmp").  "-" is standard output (a closed pipe behind it is
 * G_FILE_ERROR_PIPE; ignoring SIGPIPE is the program's choice).  Symbolic links are followed, the
 * permissions of an old file are kept, a file without write permission is not replaced.
 */
bool file_write(const char *path, const char *data, size_t n_bytes, GError **error);

/* Lets SIGHUP, SIGINT, SIGQUIT and SIGTERM wait in this thread, so that what is made of several files is
 * whole or gone when they end the program; pthread_sigmask(SIG_SETMASK, before, NULL) ends that.
 * @before  (out) the signals that waited already */
void file_hold_signals(sigset_t *before);

/* Reads @n_bytes at @offset of the open file @fd into @bytes, or writes them there if @writes,
 * however often a signal interrupts the system.  Returns: 0, an errno, or -1 if the file ends
 * before. */
int file_move(int fd, bool writes, void *bytes, size_t n_bytes, int64_t offset);
