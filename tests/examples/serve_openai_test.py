"""examples/serve through OpenAI's own Python client, with the demo model."""

import os
import sys
import unittest

import serve_support
from serve_support import DEMO_MODEL, ROOT, Server, skip_all

try:
    import openai
except ImportError:
    python = os.path.join(ROOT, 'build', 'openai', 'bin', 'python')
    if not os.path.exists(python) or os.environ.get('PROLOGUE_OPENAI') == python:
        skip_all('scripts/openai_python has not been run')
    os.environ['PROLOGUE_OPENAI'] = python
    os.execv(python, [python, *sys.argv])
if not os.path.exists(DEMO_MODEL):
    skip_all('scripts/fetch_model has not been run')

import asyncio  # after the interpreter has been chosen

MODEL = 'demo'
QUESTION = [{'role': 'user', 'content': 'What is the capital of France?'}]


class Client(unittest.TestCase):
    wait_for = serve_support.ServerTest.wait_for

    @classmethod
    def setUpClass(cls):
        cls.server = Server(DEMO_MODEL, '--model-name', MODEL, '--api-key', 'key', '--context', '2048', '--parallel', '8')
        cls.client = cls.make_client()

    @classmethod
    def make_client(cls, kind=openai.OpenAI, **more):
        return kind(**{'base_url': cls.server.url + '/v1', 'api_key': 'key', 'max_retries': 0, 'timeout': 300, **more})

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        code = cls.server.stop()
        assert code == 0, cls.server.stderr()

    def chat(self, **more):
        return self.client.chat.completions.create(**{'model': MODEL, 'messages': QUESTION, 'max_completion_tokens': 16, 'temperature': 0, **more})

    def complete(self, **more):
        return self.client.completions.create(**{'model': MODEL, 'prompt': 'The capital of France is', 'max_tokens': 8, 'temperature': 0, **more})

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], [MODEL])
        self.assertEqual(self.client.models.retrieve(MODEL).owned_by, 'prologue')

    def test_chat(self):
        # The first word is far ahead of all others: activations of 8 bits move logits by 0.25, and which capital it names by luck.
        question = [{'role': 'user', 'content': 'What is gravity?'}]
        answer = self.chat(messages=question)
        self.assertEqual(answer.choices[0].message.role, 'assistant')
        self.assertIn('Gravity', answer.choices[0].message.content)
        self.assertIn(answer.choices[0].finish_reason, ('stop', 'length'))
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
        again = self.chat(messages=question)
        self.assertEqual(again.choices[0].message.content, answer.choices[0].message.content)
        self.assertGreater(again.usage.prompt_tokens_details.cached_tokens, 0)

    def test_chat_stream(self):
        whole = self.chat()
        content, reason, usage = '', None, None
        for chunk in self.chat(stream=True, stream_options={'include_usage': True}):
            for choice in chunk.choices:
                content += choice.delta.content or ''
                reason = reason or choice.finish_reason
            usage = chunk.usage or usage
        self.assertEqual(content, whole.choices[0].message.content)
        self.assertEqual(reason, whole.choices[0].finish_reason)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_a_conversation(self):
        messages = [{'role': 'system', 'content': 'You answer in one word.'}, *QUESTION]
        first = self.chat(messages=messages).choices[0].message.content
        second = self.chat(messages=[*messages, {'role': 'assistant', 'content': first}, {'role': 'user', 'content': 'And of Spain?'}])
        self.assertTrue(second.choices[0].message.content)

    def test_completions(self):
        answer = self.complete()
        self.assertTrue(answer.choices[0].text.startswith(' Paris'), answer.choices[0].text)
        self.assertEqual(answer.usage.prompt_tokens, 5)
        self.assertEqual(answer.usage.completion_tokens, 8)
        self.assertEqual(answer.choices[0].finish_reason, 'length')
        streamed = ''.join(chunk.choices[0].text for chunk in self.complete(stream=True))
        self.assertEqual(streamed, answer.choices[0].text)
        several = self.complete(prompt=['The capital of France is', 'Once upon a time'])
        self.assertEqual([choice.index for choice in several.choices], [0, 1])
        tokens = self.complete(prompt=[504, 3575, 282])
        self.assertEqual(tokens.usage.prompt_tokens, 3)

    def test_samples(self):
        first, second = (self.chat(n=3, seed=7, temperature=1.5, max_completion_tokens=12) for _ in range(2))
        texts = [choice.message.content for choice in first.choices]
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual(texts, [choice.message.content for choice in second.choices])

    def test_logprobs(self):
        logprobs = self.chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
        self.assertTrue(logprobs)
        for token in logprobs:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.top_logprobs[0].token, token.token)  # greedy
        self.assertEqual(bytes(logprobs[0].bytes).decode(), logprobs[0].token)
        logprobs = self.complete(logprobs=2).choices[0].logprobs
        self.assertEqual(len(logprobs.tokens), len(logprobs.text_offset))

    def test_stop_and_extensions(self):
        text = self.complete(max_tokens=30).choices[0].text
        stop = text.split()[1]
        self.assertEqual(self.complete(max_tokens=30, stop=stop).choices[0].text, text[:text.index(stop)])
        answer = self.complete(temperature=0.7, extra_body={'top_k': 20, 'min_p': 0.05, 'repetition_penalty': 1.1, 'ignore_eos': True})
        self.assertEqual(answer.usage.completion_tokens, 8)

    def test_an_evaluation_harness(self):
        """What lm-evaluation-harness asks for: the log probabilities of the ends of prompts, given as texts or as tokens."""
        context, ends = 'The capital of France is', (' Paris', ' London', ' cheese')
        for max_tokens in (0, 1):
            answer = self.complete(prompt=[context + end for end in ends], max_tokens=max_tokens, echo=True, logprobs=1, seed=1234)
            last = []
            for choice, end in zip(answer.choices, ends):
                self.assertTrue(choice.text.startswith(context + end))
                logprobs = choice.logprobs
                self.assertIsNone(logprobs.token_logprobs[0])
                self.assertEqual(''.join(logprobs.tokens), choice.text)
                for begin, token in zip(logprobs.text_offset, logprobs.tokens):
                    self.assertEqual(choice.text[begin:begin + len(token)], token)
                count = len(logprobs.tokens) - max_tokens
                last.append(sum(logprobs.token_logprobs[5:count]))
                is_greedy = all(token == max(top, key=top.get) for token, top in zip(logprobs.tokens[5:count], logprobs.top_logprobs[5:count]))
                self.assertEqual(is_greedy, end == ' Paris')
            self.assertEqual(max(last), last[0])
            self.assertEqual(answer.usage.completion_tokens, 3 * max_tokens)
        by_tokens = self.complete(prompt=[[504, 3575, 282]], max_tokens=0, echo=True, logprobs=1)
        self.assertEqual(by_tokens.choices[0].text, ''.join(by_tokens.choices[0].logprobs.tokens))
        self.assertEqual(len(by_tokens.choices[0].logprobs.token_logprobs), 3)
        streamed = ''.join(chunk.choices[0].text for chunk in self.complete(prompt=context, max_tokens=4, echo=True, stream=True))
        self.assertEqual(streamed, self.complete(prompt=context, max_tokens=4, echo=True).choices[0].text)

    def test_fields_of_other_servers(self):
        for field in ({'reasoning_effort': 'low'}, {'tools': [{'type': 'function', 'function': {'name': 'f'}}]},
                      *({'extra_body': extra} for extra in ({'guided_regex': 'a+'}, {'min_tokens': 4}, {'chat_template': '{{ messages }}'}))):
            with self.assertRaises(openai.BadRequestError) as raised:
                self.chat(**field)
            [name] = field.get('extra_body', field)
            self.assertEqual((raised.exception.param, raised.exception.code), (name, 'unsupported_value'))
        answer = self.chat(user='me', store=False, metadata={'a': 'b'}, service_tier='auto', parallel_tool_calls=True, tools=[], seed=-1,
                           max_completion_tokens=None, max_tokens=2, extra_body={'min_tokens': 0, 'cache_salt': 'mine'})
        self.assertEqual(answer.usage.completion_tokens, 2)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            self.chat(temperature=5)
        self.assertEqual(raised.exception.param, 'temperature')
        self.assertEqual(raised.exception.type, 'invalid_request_error')
        with self.assertRaises(openai.BadRequestError) as raised:
            self.complete(prompt='x ' * 5000)
        self.assertEqual(raised.exception.code, 'context_length_exceeded')
        with self.assertRaises(openai.NotFoundError):
            self.chat(model='gpt-4')
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model=MODEL, input='x')
        with self.make_client(api_key='wrong') as stranger, self.assertRaises(openai.AuthenticationError):
            stranger.models.list()

    def test_a_client_that_stops_listening(self):
        name = 'prologue_finished_total{reason="cancelled"}'
        before = self.server.metrics()[name]
        stream = self.chat(stream=True, max_completion_tokens=1000, extra_body={'ignore_eos': True})
        for _ in range(3):
            next(stream)
        stream.close()
        with self.make_client(timeout=1) as hasty, self.assertRaises(openai.APITimeoutError):
            hasty.completions.create(model=MODEL, prompt='x', max_tokens=2000, extra_body={'ignore_eos': True})
        self.wait_for('the cancellation', lambda: self.server.metrics()[name] == before + 2)

    def test_many_at_once(self):
        async def all_of_them():
            async with self.make_client(openai.AsyncOpenAI) as client:
                return await asyncio.gather(*(client.completions.create(model=MODEL, prompt=f'{i} + {i} =', max_tokens=4, temperature=0)
                                              for i in range(24)))
        self.assertEqual([answer.usage.completion_tokens for answer in asyncio.run(all_of_them())], [4] * 24)


if __name__ == '__main__':
    unittest.main()
