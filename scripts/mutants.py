#!/usr/bin/env python3
"""Mutation testing: how many small mistakes in a file its unit tests notice.

usage: scripts/mutants.py [--build DIR] [--n N] [--first K] [--seed S] [--quick S] [--tests PATTERN...]
                          [--sanitize] [--survivors FILE] [--only FILE] FOLDER|FILE.c...

A mutant is a file with one operator, constant or condition changed, or one statement left out.  It is compiled
alone, linked before the archives of the build folder (which `make test` or `make run-tests` has filled) with each
test program that belongs to its folder, and these run until one fails: the mutant is killed.  A mutant whose object
file is the original's is equivalent and does not count; nor does one that does not compile.  The sample is drawn
from all places of all files with the seed.  Prints a line for each survivor and the sums of each folder; one core.
With --quick S no test program runs that takes more than S seconds of CPU; what survives (--survivors FILE) is then tried
with all of them: --only FILE.  With --sanitize the mutant alone has the checks of the address and undefined-behaviour
sanitizers, and their heap: what reads behind an array or is not given back is found, too.
"""
import argparse, collections, glob, os, random, re, resource, shlex, shutil, signal, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Test programs of a folder's files, by pattern.
TESTS = {
    'schedule': 'tests/schedule/test_*.c tests/simulator/test_z*.c',
    'profiles/cost': 'tests/profiles/test_[clmrsw]*.c tests/profiles/test_ph*.c',
    'planner/bounds': 'tests/planner/test_*.c',
    'simulator': 'tests/simulator/test_*.c',
    'executor/run': 'tests/executor/test_run.c tests/executor/test_rank.c tests/executor/test_checkpoint.c tests/executor/test_data.c '
                    'tests/executor/test_optimize.c tests/executor/test_disturbed.c tests/executor/test_matrix.c tests/executor/test_verify.c '
                    'tests/executor/test_offload.c tests/executor/test_faults.c tests/executor/test_state_mixer.c',
}
# Archives that a folder's tests link, in order: the Makefile's.
ARCHIVES = {'schedule': 'schedule base', 'profiles': 'profiles schedule models base'}
ALL_ARCHIVES = 'executor simulator planner profiles schedule models base'
SANITIZED = '--sanitize' in sys.argv
LINKER = ['-fuse-ld=lld'] if shutil.which('ld.lld') else []
SWAPS = {'<': '<=', '<=': '<', '>': '>=', '>=': '>', '==': '!=', '!=': '==', '&&': '||', '||': '&&', '+': '-', '-': '+',
         '*': '/', '/': '*', '%': '*', '+=': '-=', '-=': '+=', '&': '|', '|': '&', '<<': '>>', '>>': '<<',
         'MIN': 'MAX', 'MAX': 'MIN', 'true': 'false', 'false': 'true', '++': '--', 'continue': 'break', 'break': 'continue'}
TOKEN = re.compile(r'''(?P<skip>/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|^[ \t]*\#(?:\\\n|[^\n])*)
    |(?P<word>[A-Za-z_]\w*)|(?P<number>\d[\w.]*)
    |(?P<operator>\+\+|--|->|<<=|>>=|[-+*/%&|^]=|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>=&|!~^?:])''', re.S | re.M | re.X)
STATEMENT = re.compile(r'^ +(?!return|break|continue|goto|const|static|struct|g_auto|\w+ \*?\w+(?: =|;|\[))'
                       r'[A-Za-z_*(][^;{}\n]*;[ \t]*$', re.M)


def mutants_of(text):
    """(offset, length, replacement) of every place."""
    found, skipped = [], []
    for m in TOKEN.finditer(text):
        token, at = m.group(), m.start()
        if m.lastgroup == 'skip':
            skipped.append((at, m.end()))
            continue
        line_start = text.rfind('\n', 0, at) + 1
        if not text[line_start:at].startswith(' '):
            continue  # declarations and tables outside functions
        if m.lastgroup == 'operator':
            # clang-format has a space on both sides of binary operators only
            binary = text[at - 1] == ' ' and text[m.end():m.end() + 1] in (' ', '\n')
            if token in SWAPS and (binary or token == '++'):
                found.append((at, len(token), SWAPS[token]))
        elif m.lastgroup == 'number' and token.isdigit():
            found.append((at, len(token), str(int(token) + 1)))
        elif token in SWAPS:
            found.append((at, len(token), SWAPS[token]))
        elif token in ('if', 'while') and text[m.end():m.end() + 2] == ' (':
            depth, end = 0, m.end() + 1
            while end < len(text):
                depth += {'(': 1, ')': -1}.get(text[end], 0)
                end += 1
                if depth == 0:
                    break
            found.append((m.end() + 1, end - m.end() - 1, '(!' + text[m.end() + 1:end] + ')'))
    for m in STATEMENT.finditer(text):
        if not any(a <= m.start() < b for a, b in skipped):
            found.append((m.start(), m.end() - m.start(), ';'))
    return sorted(set(found))


def run(command, seconds, **keywords):
    """Its exit status; a time limit of CPU and of the clock counts as a failure."""
    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if not SANITIZED:  # whose shadow takes terabytes of addresses
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True,
                              preexec_fn=limit, timeout=30 * seconds, **keywords).returncode
    except subprocess.TimeoutExpired:
        return -1


class Folder:
    """A folder's tests: the fastest first, then those that have killed most."""
    def __init__(self, name, build, work, quick_s, patterns):
        self.name, self.build, self.work = name, build, work
        sources = sorted({s for p in patterns or TESTS[name].split() for s in glob.glob(os.path.join(ROOT, p))})
        self.seconds, self.kills, self.objects = {}, collections.Counter(), {}
        for source in sources:
            test = os.path.relpath(source, ROOT)[:-2]
            program, object_file = f'{build}/{test}', f'{build}/{test}.o'
            if not os.path.exists(program):
                sys.exit(f'mutants: {program} is not built')
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            status = run([program, '-q'], 300 if quick_s is None else int(quick_s + 1))
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            if quick_s is not None and seconds > quick_s:
                print(f'# {test} takes more than {quick_s:g} s; it is left out', flush=True)
                continue
            if status != 0:
                print(f'# {test} fails without a mutant; it is left out', flush=True)
                continue
            self.seconds[test] = seconds
            self.objects[test] = object_file

    def order(self, file):
        """Those of the file's name first, then those that are quick or have killed mutants of this file or folder."""
        stem = os.path.basename(file)[:-2]
        return sorted(self.seconds, key=lambda t: (self.seconds[t] + 0.3) /
                      (self.kills[t] + 4 * self.kills[t, file] + (20 if stem in t else 0.5)))

    def kill(self, file, mutated, link, libraries):
        for test in self.order(file):
            program = os.path.join(self.work, 'test')
            archives = [f'{self.build}/libdegas-{a}.a' for a in ARCHIVES.get(test.split('/')[1], ALL_ARCHIVES).split()]
            if run([*link, '-o', program, self.objects[test], mutated, *archives, *libraries], 120) != 0:
                continue  # the test has its own copy of the file
            if run([program, '-q'], int(2 + 4 * self.seconds[test])) != 0:
                self.kills[test] += 1
                self.kills[test, file] += 1
                return test
        return None


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument('--build', default='build/release')
    parser.add_argument('--n', type=int, default=500)
    parser.add_argument('--seed', type=int, default=23)
    parser.add_argument('--first', type=int, default=0, help='leaves out so many of the sample, which another run tried')
    parser.add_argument('--quick', type=float, help='the longest that a test program may take')
    parser.add_argument('--tests', nargs='+', help='the test programs, in place of those of the folder: tests/simulator/test_z*.c')
    parser.add_argument('--sanitize', action='store_true')
    parser.add_argument('--survivors', help='where the survivors are written')
    parser.add_argument('--only', help='tries no others than those in this file')
    parser.add_argument('what', nargs='*', default=sorted(TESTS))
    arguments = parser.parse_args()
    os.chdir(ROOT)
    os.environ.update(G_DEBUG='fatal-criticals', LC_ALL='C.UTF-8')
    flags = subprocess.run('pkg-config --cflags glib-2.0 libcjson yaml-0.1 zlib', shell=True, capture_output=True,
                           text=True).stdout.split()
    libraries = subprocess.run('pkg-config --libs glib-2.0 libcjson yaml-0.1 zlib', shell=True, capture_output=True,
                               text=True).stdout.split() + ['-ldl', '-lm', '-pthread']
    compile_ = ['gcc', '-std=c17', '-D_GNU_SOURCE', '-O1', '-w', '-ffp-contract=off', '-fno-math-errno', '-pthread', '-I.',
                *flags, '-c', '-x', 'c']
    link = ['gcc', *LINKER, '-s']
    if SANITIZED:
        checks = ['-fsanitize=address,undefined', '-fno-sanitize-recover=all']
        compile_, link = compile_[:1] + checks + compile_[1:], ['gcc', *LINKER, *checks]
    files = []
    for what in arguments.what:
        files += [what] if what.endswith('.c') else sorted(f'{what}/{f}' for f in os.listdir(what) if f.endswith('.c'))
    places = []
    for file in files:
        text = open(file, encoding='utf-8').read()
        places += [(file, *m) for m in mutants_of(text)]
    random.Random(arguments.seed).shuffle(places)
    stopped = []
    for number in (signal.SIGINT, signal.SIGTERM):  # the sample ends there; what was found is printed
        signal.signal(number, lambda *_: stopped.append(True))
    only = None
    if arguments.only:
        with open(arguments.only, encoding='utf-8') as f:
            only = set(f.read().splitlines())
    sums = collections.defaultdict(collections.Counter)
    survivors = []
    with tempfile.TemporaryDirectory() as work:
        folders, originals, n, begin = {}, {}, 0, time.time()
        for file, at, length, new in places:
            if n == arguments.first + arguments.n or stopped:
                break
            name = os.path.dirname(file)
            text = open(file, encoding='utf-8').read()
            line = text.count('\n', 0, at) + 1
            old_words, new_words = (shlex.quote(' '.join(s.split())) for s in (text[at:at + length], new))
            shown = f'{file}:{line}: {old_words} -> {new_words}'
            if only is not None and shown not in only:
                continue
            mutated, object_file = os.path.join(work, 'm.c'), os.path.join(work, 'm.o')

            def compiled(source):
                with open(mutated, 'w', encoding='utf-8') as f:
                    f.write(f'#line 1 "{file}"\n' + source)
                if run(compile_ + [mutated, '-o', object_file], 60) != 0:
                    return None
                return open(object_file, 'rb').read()

            if file not in originals:
                originals[file] = compiled(text)
            code = compiled(text[:at] + new + text[at + length:])
            if code is None or code == originals[file]:
                sums[name]['does not compile' if code is None else 'equivalent'] += 1
                continue
            n += 1
            if n <= arguments.first:
                continue
            if name not in folders:
                folders[name] = Folder(name, arguments.build, work, arguments.quick, arguments.tests)
            killer = folders[name].kill(file, object_file, link, libraries)
            sums[name]['killed' if killer else 'survived'] += 1
            if killer is None:
                survivors.append(shown)
                print(f'survivor {shown}    | {text.splitlines()[line - 1].strip()}', flush=True)
            if n % 10 == 0:
                tried = sum(f['killed'] + f['survived'] for f in sums.values())
                print(f'# {n}: {sum(f["killed"] for f in sums.values())} of {tried} killed after {time.time() - begin:.0f} s',
                      flush=True)
    for name, s in sorted(sums.items()):
        total = s['killed'] + s['survived']
        print(f'{name}: {total} mutants, {s["killed"]} killed ({100 * s["killed"] / max(total, 1):.0f} %), '
              f'{s["survived"]} survived; {s["equivalent"]} equivalent, {s["does not compile"]} do not compile')
    for folder in folders.values():
        idle = [t for t in folder.seconds if folder.kills[t] == 0]
        print(f'# {folder.name}: killed nothing first: {", ".join(idle)}')
    if arguments.survivors:
        with open(arguments.survivors, 'w', encoding='utf-8') as f:
            f.writelines(s + '\n' for s in survivors)


main()
