"""benchmarks/peers, with packages and programs that answer at once in the place of other engines."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(ROOT, 'benchmarks/peers')
sys.path.insert(0, FOLDER)
import workloads  # noqa: E402

# Each writes down how it was called.
RECORD = '''
import json, os, time
def record(**values):
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps(values) + "\\n")
'''
PACKAGES = {'vllm': RECORD + '''
__version__ = "1.2.3"
class TokensPrompt(dict): pass
class SamplingParams:
    def __init__(self, **values): self.__dict__ = values
class Output: pass
class LLM:
    def __init__(self, **values): record(package="vllm", load=values)
    def generate(self, prompts, sampling, use_tqdm):
        record(package="vllm", prompts=[each["prompt_token_ids"] for each in prompts], sampling=[each.__dict__ for each in sampling])
        time.sleep(2e-5 * max(each.max_tokens for each in sampling))
        outputs = []
        for each in sampling:
            inner, outer = Output(), Output()
            inner.token_ids, outer.outputs = [7] * (each.max_tokens - int(os.environ.get("TOO_FEW", 0))), [inner]
            outputs.append(outer)
        return outputs
''', 'sglang': RECORD + '''
__version__ = "2.3.4"
class Engine:
    def __init__(self, **values): record(package="sglang", load=values)
    def generate(self, input_ids, sampling_params):
        record(package="sglang", prompts=input_ids, sampling=sampling_params)
        time.sleep(2e-5 * max(each["max_new_tokens"] for each in sampling_params))
        return [{"meta_info": {"completion_tokens": each["max_new_tokens"]}} for each in sampling_params]
    def shutdown(self): record(package="sglang", shutdown=True)
''', 'llama_cpp': RECORD + '''
__version__ = "3.4.5"
class Llama:
    def __init__(self, model, **values):
        self.clean = True
        record(package="llama_cpp", load=values)
    def reset(self): self.clean = True
    def generate(self, tokens, **sampling):
        assert self.clean
        self.clean = False
        record(package="llama_cpp", prompts=[list(tokens)], sampling=[sampling])
        while True:
            time.sleep(2e-5)
            yield 7
'''}
BATCHED_BENCH = '''#!/usr/bin/env python3
import sys
print("a line of a log")
print('{"pp": 1, "tg": 2, "pl": %s, "t_pp": 9.0, "t_tg": 0.66}' % sys.argv[sys.argv.index("-npl") + 1])
open(__import__("os").environ["CALLS"], "a").write('{"package": "batched-bench", "arguments": "%s"}\\n' % " ".join(sys.argv[1:]))
'''
OURS = [{'name': 'first token, 32 tokens', 'section': 'first-token', 'first_token_ms': {'mean': 1.5, 'p50': 1.25, 'p99': 2.0}},
        {'name': 'mini-sglang', 'section': 'throughput', 'output_tokens_per_s': 1234.5},
        {'name': 'mini-sglang, no overlap', 'section': 'throughput', 'output_tokens_per_s': 1000.0},
        {'name': 'prefix of 4096 tokens, 32 new ones', 'section': 'prefix', 'first_token_ms': 3.0},
        {'name': 'decode, batch 2', 'section': 'decode', 'batch': 2, 'output_tokens_per_s': 50.0}]
BENCH_ENGINE = '''#!/usr/bin/env python3
import json, os, sys
open(os.environ["CALLS"], "a").write(json.dumps({"package": "ours", "arguments": sys.argv[1:]}) + "\\n")
json.dump({"rows": %s}, open(sys.argv[sys.argv.index("--json") + 1], "w"))
'''


class Peers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.calls_path, self.json = os.path.join(self.folder, 'calls'), os.path.join(self.folder, 'rows.json')
        for name, text in PACKAGES.items():
            self.write(f'packages/{name}/__init__.py', text)
        self.model = self.write('model.gguf', '')
        self.bench_engine = self.write('bench_engine', BENCH_ENGINE % OURS, True)

    def write(self, path, text, executable=False):
        path = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w') as file:
            file.write(text)
        if executable:
            os.chmod(path, 0o755)
        return path

    def run_it(self, *arguments, **environment):
        path = os.pathsep.join(os.path.join(self.folder, each) for each in ('packages', 'more'))
        return subprocess.run(
            [sys.executable, '-B', os.path.join(FOLDER, 'run.py'), '--model', self.model, '--device', 'cpu', '--batches', '2,1', '--requests', '3',
             '--json', self.json, '--bench-engine', self.bench_engine, *arguments], capture_output=True, text=True, timeout=120, cwd=self.folder,
            env={**os.environ, 'PYTHONPATH': path, 'CALLS': self.calls_path, 'PATH': os.path.join(self.folder, 'bin') + ':/usr/bin:/bin',
                 **environment})

    def measure(self, *arguments, **environment):
        result = self.run_it(*arguments, **environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.json) as file:
            return result.stdout, json.load(file)

    def calls(self, package):
        with open(self.calls_path) as file:
            return [call for call in map(json.loads, file) if call['package'] == package]

    def refused(self, *arguments, code=2):
        result = self.run_it(*arguments)
        self.assertEqual((result.returncode, result.stdout), (code, ''), result.stderr)
        self.assertFalse(os.path.exists(self.calls_path), 'something ran')
        return result.stderr

    def test_workloads_are_those_of_bench_engine(self):
        requests = workloads.mini_sglang(256)
        self.assertEqual(sum(len(prompt) for prompt, _ in requests), 142827)  # as in workload_test.cpp
        self.assertEqual(sum(max_tokens for _, max_tokens in requests), 133966)
        self.assertEqual([len(prompt) for prompt, _ in workloads.equal(3, 5, 9)], [5, 5, 5])
        self.assertEqual(workloads.shifted([([0, 10000], 4)], 2), [([2, 1], 4)])

    def check_batched(self, package, max_tokens, temperature):
        """What a peer that runs requests at the same time was asked for."""
        calls = self.calls(package)
        generated = [call for call in calls if 'prompts' in call]
        self.assertTrue(all(each['ignore_eos'] for call in generated for each in call['sampling']))
        of_throughput = [call for call in generated if call['sampling'][0][temperature] == 0.6]
        self.assertEqual([len(call['prompts']) for call in of_throughput], [3, 1, 1, 1])
        wanted = workloads.mini_sglang(3)
        self.assertEqual([len(prompt) for prompt in of_throughput[0]['prompts']], [len(prompt) for prompt, _ in wanted])
        self.assertEqual([each[max_tokens] for each in of_throughput[0]['sampling']], [tokens for _, tokens in wanted])
        prompts = [tuple(prompt[:16]) for call in generated for prompt in call['prompts']]
        self.assertEqual(len(prompts), len(set(prompts)), 'a prompt was used twice')
        decode = [call for call in generated if len(call['prompts']) == 2]
        self.assertEqual([call['sampling'][0][max_tokens] for call in decode], [65] + [65, 1] * 3)
        self.assertEqual({len(prompt) for call in decode for prompt in call['prompts']}, {512 - 32})
        return calls[0]['load']

    def test_vllm(self):
        _, result = self.measure('--peer', 'vllm', '--without-ours')
        load = self.check_batched('vllm', 'max_tokens', 'temperature')
        self.assertEqual(load, {'model': self.model, 'dtype': 'float32', 'max_model_len': 2048, 'max_num_seqs': 32,
                                'enable_prefix_caching': False, 'skip_tokenizer_init': True, 'seed': 0})
        self.assertEqual(result['peers'], {'vllm': '1.2.3'})
        self.assertEqual([row['name'] for row in result['rows']],
                         [f'{name}, vllm' for name in ('first token, 32 tokens', 'prefill, 16 prompts of 512 tokens', 'decode, batch 1',
                                                       'decode, batch 2', 'mini-sglang', 'mini-sglang, one at a time')])

    def test_sglang(self):
        self.measure('--peer', 'sglang', '--without-ours', '--dummy-weights', '--model-of', 'sglang=' + self.folder)
        load = self.check_batched('sglang', 'max_new_tokens', 'temperature')
        self.assertEqual((load['model_path'], load['load_format'], load['disable_radix_cache']), (self.folder, 'dummy', True))
        self.assertTrue(self.calls('sglang')[-1]['shutdown'])

    def test_llama_cpp(self):
        """One sequence; batches only where there is llama-batched-bench."""
        _, result = self.measure('--peer', 'llama.cpp', '--without-ours')
        names = [row['name'] for row in result['rows']]
        self.assertEqual(names, [f'{name}, llama.cpp' for name in ('first token, 32 tokens', 'prefill, 16 prompts of 512 tokens',
                                                                   'decode, batch 1', 'mini-sglang, one at a time')])
        self.assertEqual({len(call['prompts']) for call in self.calls('llama_cpp') if 'prompts' in call}, {1})
        self.assertEqual(self.calls('llama_cpp')[0]['load']['n_gpu_layers'], 0)
        self.write('bin/llama-batched-bench', BATCHED_BENCH, True)
        _, result = self.measure('--peer', 'llama.cpp', '--without-ours', '--section', 'decode', '--threads', '5')
        row = result['rows'][1]
        self.assertEqual((row['name'], row['step_us']), ('decode, batch 2, llama.cpp', 10153.846))  # 0.66 s for 65 tokens
        self.assertEqual(row['output_tokens_per_s'], 196.97)
        self.assertEqual(self.calls('batched-bench')[0]['arguments'],
                         f'-m {self.model} -c 1536 -npp 480 -ntg 65 -npl 2 -t 5 -ngl 0 --output-format jsonl')

    def test_llama_batched_bench_without_room(self):
        """It says so and makes no row: neither does the script, and the other rows are there."""
        self.write('bin/llama-batched-bench', '#!/bin/sh\necho "no room"\nexit 1\n', True)
        result = self.run_it('--peer', 'llama.cpp', '--without-ours', '--section', 'decode')
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn('llama.cpp: decode, batch 2 is left out: it cannot be measured', result.stderr)
        with open(self.json) as file:
            self.assertEqual([row['batch'] for row in json.load(file)['rows']], [1])

    def test_the_table_is_the_rows(self):
        """Beside ours; x is how many times as fast ours is."""
        table, result = self.measure('--peer', 'vllm', '--peer', 'llama.cpp', '--section', 'throughput', '--section', 'decode', '--section',
                                     'first-token')
        (ours,) = self.calls('ours')
        self.assertEqual(ours['arguments'][:10],
                         ['--model', self.model, '--context', '512', '--requests', '3', '--batches', '1,2', '--device', 'cpu'])
        self.assertEqual(ours['arguments'][12:18], ['--section', 'first-token', '--section', 'decode', '--section', 'throughput'])
        rows = {row['name']: row for row in result['rows']}
        lines = {line[:36].strip(): line[36:].split() for line in table.splitlines()[2:]}
        self.assertEqual(list(lines), ['first token, 32 tokens', 'mini-sglang', 'decode, batch 2', 'decode, batch 1', 'mini-sglang, one at a time'])

        def number(value):
            return f'{value:,.2f}' if value < 100 else f'{value:,.0f}'
        first = [rows[f'first token, 32 tokens, {peer}']['first_token_ms']['p50'] for peer in ('vllm', 'llama.cpp')]
        self.assertEqual(lines['first token, 32 tokens'], ['ms', '1.25', number(first[0]), f'{first[0] / 1.25:.2f}', number(first[1]),
                                                           f'{first[1] / 1.25:.2f}'])
        tokens = rows['mini-sglang, vllm']['output_tokens_per_s']
        self.assertEqual(lines['mini-sglang'], ['tokens/s', '1,234', number(tokens), f'{1234.5 / tokens:.2f}', '-', '-'])
        one = [rows[f'decode, batch 1, {peer}']['output_tokens_per_s'] for peer in ('vllm', 'llama.cpp')]
        self.assertEqual(lines['decode, batch 1'], ['tokens/s', '-', number(one[0]), '-', number(one[1]), '-'])
        for key in ('date', 'commit', 'device', 'model', 'method', 'command'):
            self.assertTrue(result[key], key)

    def test_an_earlier_run_of_ours(self):
        path = self.write('ours.json', json.dumps({'rows': OURS}))
        table, _ = self.measure('--peer', 'vllm', '--section', 'first-token', '--ours', path)
        self.assertIn(' 1.25 ', table)
        self.assertEqual(self.calls('ours'), [])

    def test_another_number_of_tokens_is_an_error(self):
        """The other peers run."""
        result = self.run_it('--peer', 'vllm', '--peer', 'sglang', '--section', 'first-token', '--without-ours', TOO_FEW='1')
        self.assertEqual(result.returncode, 1)
        self.assertIn('vllm generated [15] tokens, not [16]: its times cannot be compared', result.stderr)
        self.assertIn('run.py: vllm failed; the messages are above', result.stderr)
        with open(self.json) as file:
            self.assertEqual([row['peer'] for row in json.load(file)['rows']], ['sglang'])

    def test_a_missing_package_is_named(self):
        self.write('more/absent_peer.py', 'PACKAGE, PIP, BATCHED = "package_of_nobody", "package-of-nobody", True\n')
        self.assertIn('run.py: --peer absent: the package package_of_nobody is not installed for ' + sys.executable +
                      ': pip install package-of-nobody\n', self.refused('--peer', 'vllm', '--peer', 'absent'))
        self.assertIn('run.py: --peer exllama: known are llama.cpp, sglang, vllm\n', self.refused('--peer', 'exllama'))

    def test_bad_arguments(self):
        for arguments, message in [
                (('--peer', 'vllm', '--model', '/nowhere'), '/nowhere: there is no such model'),
                (('--peer', 'vllm', '--model-of', 'sglang=/tmp'), '--model-of sglang=/tmp: it must be PEER=PATH, with a peer that --peer names'),
                (('--peer', 'vllm', '--context', '8'), '--context must be at least 16'),
                (('--peer', 'vllm', '--batches', '4,0'), 'argument --batches: 0 is not at least 1'),
                (('--peer', 'vllm', '--requests', 'many'), "argument --requests: invalid positive value: 'many'"),
                (('--peer', 'vllm', '--section', 'prefix'), "argument --section: invalid choice: 'prefix'"),
                (('--peer', 'vllm', '--bench-engine', '/nowhere'), '/nowhere: there is no such program; build bench_engine, or give'),
                ((), 'the following arguments are required: --peer')]:
            with self.subTest(arguments):
                self.assertIn(message, self.refused(*arguments))


if __name__ == '__main__':
    unittest.main()
