"""Model files as people have them: `generate` gives the tokens of transformers, whatever the files look like.

needs: torch, transformers, tokenizers, safetensors, of this interpreter or of scripts/torch_python's; without them it says so and exits
with 77."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

try:
    import torch
    from safetensors.torch import load_file, save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
except ImportError as error:
    other = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../build/torch/bin/python')
    if os.path.exists(other) and not os.path.samefile(sys.prefix, os.path.dirname(os.path.dirname(other))):
        os.execv(other, [other, '-B', *sys.argv])
    print(f'skipped: {error}')
    sys.exit(77)

GENERATE = os.environ['PROLOGUE_GENERATE']
WORDS = [chr(c) for c in range(ord('a'), ord('z') + 1)]
MARKERS = ['<s>', '</s>', '[gMASK]', '<sop>']
PROMPT, NEW_TOKENS = 'helloworld', 24


class UnusualModels(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        torch.manual_seed(5)
        config = LlamaConfig(vocab_size=len(WORDS + MARKERS), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                             num_key_value_heads=2, head_dim=8, max_position_embeddings=128, tie_word_embeddings=True, bos_token_id=None,
                             eos_token_id=None, pad_token_id=None, initializer_range=0.4)
        LlamaForCausalLM(config).save_pretrained(self.folder.name)
        os.remove(self.path('generation_config.json'))
        self.tensors = load_file(self.path('model.safetensors'))
        self.write_tokenizer()

    def tearDown(self):
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write_tokenizer(self, processor=None, more_markers=()):
        tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(WORDS)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(MARKERS + list(more_markers))
        if processor is not None:
            tokenizer.post_processor = processor
        tokenizer.save(self.path('tokenizer.json'))

    def write_tensors(self, **changed):
        save_file({**self.tensors, **changed}, self.path('model.safetensors'), metadata={'format': 'pt'})

    def update(self, name, **values):
        content = {}
        if os.path.exists(self.path(name)):
            with open(self.path(name)) as file:
                content = json.load(file)
        with open(self.path(name), 'w') as file:
            json.dump({**content, **values}, file)

    def run_generate(self, *arguments):
        command = [GENERATE, '--device', 'cpu', '--dtype', 'float32', '--model', self.folder.name, '--prompt', PROMPT, '--max-tokens',
                   str(NEW_TOKENS), '--json', *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(done.stdout), done.stderr

    def assert_same(self, warning=''):
        """The prompt's and the generated tokens, and what is said about the files."""
        ours, errors = self.run_generate()
        model = AutoModelForCausalLM.from_pretrained(self.folder.name, dtype=torch.float32).eval()
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=self.path('tokenizer.json'))
        prompt = tokenizer(PROMPT, return_tensors='pt', return_token_type_ids=False)
        self.assertEqual(ours['prompt_tokens'], prompt['input_ids'][0].tolist())
        with torch.no_grad():
            tokens = model.generate(**prompt, max_new_tokens=NEW_TOKENS, pad_token_id=0)[0, prompt['input_ids'].shape[1]:].tolist()
        ends = model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        self.assertEqual(ours['tokens'], tokens[:-1] if tokens[-1] in ends else tokens)
        self.assertEqual(ours['finish_reason'], 'end' if tokens[-1] in ends else 'length')
        if warning:
            self.assertIn(warning, errors)
        else:
            self.assertEqual(errors, '')
        return ours['tokens']

    def test_as_it_is(self):
        tokens = self.assert_same()
        self.assertGreater(len(set(tokens)), 2)

    def test_a_tied_model_that_stores_its_head(self):  # vllm#3323
        tied = self.assert_same()
        embedding = self.tensors['model.embed_tokens.weight']
        self.write_tensors(**{'lm_head.weight': embedding.clone()})
        self.assertEqual(self.assert_same(), tied)
        self.write_tensors(**{'lm_head.weight': embedding.flip(0).contiguous()})
        self.assertNotEqual(self.assert_same('the stored lm_head.weight is used'), tied)

    def test_float64(self):
        self.write_tensors(**{name: tensor.double() for name, tensor in self.tensors.items()})
        self.assert_same()

    def test_constants_of_older_versions(self):
        self.write_tensors(**{'model.embeddings.position_ids': torch.arange(128)[None], 'model.rotary_emb.inv_freq': torch.ones(4),
                              'model.layers.0.self_attn.rotary_emb.inv_freq': torch.ones(4),
                              'model.layers.0.attn.bias': torch.ones(1, 1, 8, 8, dtype=torch.bool),
                              'model.layers.0.attn.masked_bias': torch.tensor(-1e9)})
        self.assert_same()

    def test_ends_that_stand_in_config_json_only(self):  # InfiniLM#386
        tokens = self.assert_same()
        self.update('config.json', eos_token_id=[29, tokens[5]])
        self.assertLess(len(self.assert_same()), NEW_TOKENS)

    def test_a_marker_more_than_the_embedding_has_rows(self):
        self.write_tokenizer(more_markers=['[PAD]'])
        self.assert_same("none for the tokens '[PAD]'")

    def test_several_tokens_before_a_text(self):
        self.write_tokenizer(processors.TemplateProcessing(single='[gMASK] <sop> $A', pair='[gMASK] <sop> $A $B:1',
                                                           special_tokens=[('[gMASK]', 28), ('<sop>', 29)]))
        self.assert_same()

    def test_a_repetition_penalty_of_the_files(self):
        plain = self.assert_same()
        self.update('generation_config.json', repetition_penalty=1.7)
        penalised = self.assert_same()
        self.assertNotEqual(penalised, plain)
        self.assertEqual(self.run_generate('--repetition-penalty', '1')[0]['tokens'], plain)

    def test_do_sample(self):
        plain = self.assert_same()
        self.update('generation_config.json', do_sample=False)
        self.assertEqual(self.assert_same(), plain)
        self.update('generation_config.json', do_sample=True, temperature=3.0, top_k=5)
        sampled = self.run_generate('--seed', '9')[0]['tokens']
        self.assertEqual(sampled, self.run_generate('--seed', '9', '--temperature', '3', '--top-k', '5')[0]['tokens'])
        self.assertNotEqual(sampled, plain)
        self.assertEqual(self.run_generate('--temperature', '0')[0]['tokens'], plain)


if __name__ == '__main__':
    unittest.main(verbosity=2)
