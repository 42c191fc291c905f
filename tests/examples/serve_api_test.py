"""examples/serve over plain HTTP, with a tiny random model: shapes, limits, cancellation, the end, and what is not HTTP or JSON."""

import concurrent.futures
import contextlib
import errno
import fcntl
import http.client
import json
import os
import random
import re
import resource
import select
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import serve_support
from serve_support import PATIENCE, Server, ServerTest

COMPLETIONS = '/v1/completions'
CHAT = '/v1/chat/completions'
HELLO = {'prompt': 'hello there', 'max_tokens': 4, 'temperature': 0, 'ignore_eos': True}
HELLO_CHAT = {'messages': [{'role': 'user', 'content': 'hello'}], 'max_tokens': 4, 'temperature': 0, 'ignore_eos': True}
ENDLESS = {'prompt': 'hello', 'max_tokens': 60000, 'ignore_eos': True}  # for servers with a long context
LONG_CONTEXT = 65536


def post(body, path=COMPLETIONS, headers=b'Content-Type: application/json\r\n', length=None):
    """The bytes of a request."""
    length = len(body) if length is None else length
    return b'POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n%s' % (path.encode(), headers, length, body)


def status_of(response):
    found = re.match(rb'HTTP/1\.1 (\d{3}) ', response)
    return int(found[1]) if found else None


class Shapes(ServerTest):
    def test_completion(self):
        status, answer = self.server.post(COMPLETIONS, HELLO)
        self.assertEqual(status, 200)
        self.assertEqual(list(answer), ['id', 'object', 'created', 'model', 'choices', 'usage'])
        self.assertTrue(answer['id'].startswith('cmpl-'))
        self.assertEqual(answer['object'], 'text_completion')
        self.assertAlmostEqual(answer['created'], time.time(), delta=100)
        self.assertEqual(answer['model'], 'tiny-512')
        [choice] = answer['choices']
        self.assertEqual({**choice, 'text': ''}, {'index': 0, 'text': '', 'logprobs': None, 'finish_reason': 'length'})
        usage = answer['usage']
        self.assertEqual(usage['completion_tokens'], 4)
        self.assertGreater(usage['prompt_tokens'], 1)
        self.assertEqual(usage['total_tokens'], usage['prompt_tokens'] + 4)
        self.assertIn('cached_tokens', usage['prompt_tokens_details'])

    def test_chat(self):
        status, answer = self.server.post(CHAT, HELLO_CHAT)
        self.assertEqual(status, 200)
        self.assertEqual(answer['object'], 'chat.completion')
        [choice] = answer['choices']
        self.assertEqual(choice['message']['role'], 'assistant')
        self.assertIsInstance(choice['message']['content'], str)
        self.assertEqual(choice['finish_reason'], 'length')
        parts = [{'type': 'text', 'text': 'hel'}, {'type': 'text', 'text': 'lo'}]
        _, in_parts = self.server.post(CHAT, {**HELLO_CHAT, 'messages': [{'role': 'user', 'content': parts}]})
        self.assertEqual(in_parts['choices'], answer['choices'])
        developer = [{'role': 'developer', 'content': 'be kind'}, {'role': 'user', 'content': 'hi'}]
        system = [{'role': 'system', 'content': 'be kind'}, {'role': 'user', 'content': 'hi'}]
        self.assertEqual(self.server.post(CHAT, {**HELLO_CHAT, 'messages': developer})[1]['choices'],
                         self.server.post(CHAT, {**HELLO_CHAT, 'messages': system})[1]['choices'])

    def test_chat_templates(self):
        def length(**more):
            status, answer = self.server.post(CHAT, {**HELLO_CHAT, **more})
            self.assertEqual(status, 200, answer)
            return answer['usage']['prompt_tokens']
        turns = [{'role': 'user', 'content': 'hi'}, {'role': 'assistant', 'content': 'hel'}]
        whole = length(messages=turns, add_generation_prompt=False)
        continued = length(messages=turns, continue_final_message=True)
        self.assertLess(continued, whole)  # without the end of the message
        self.assertLess(whole, length(messages=turns))
        self.assertEqual(length(messages=turns, chat_template_kwargs={'unused': [1, None]}), length(messages=turns))
        self.assertEqual(length(messages=[{**turns[0], 'name': 'x', 'reasoning_content': None}]), length(messages=turns[:1]))
        # The template of the tiny model ignores these; what it writes of a marker in a message is plain text.
        self.assertGreater(length(messages=[{'role': 'user', 'content': '<|im_end|>'}]), length(messages=[{'role': 'user', 'content': 'x'}]) + 3)
        for more, param, message in [
                ({'chat_template_kwargs': 'x'}, 'chat_template_kwargs', 'an object'),
                ({'chat_template_kwargs': {'messages': []}}, 'messages', 'a place of its own'),
                ({'continue_final_message': True, 'add_generation_prompt': True}, 'continue_final_message', 'exclude each other'),
                ({'add_generation_prompt': 1}, 'add_generation_prompt', 'true or false')]:
            status, answer = self.server.post(CHAT, {**HELLO_CHAT, **more})
            self.assertEqual((status, answer['error']['param']), (400, param))
            self.assertIn(message, answer['error']['message'])

    def test_chat_ends_with_the_context(self):
        body = {key: value for key, value in HELLO_CHAT.items() if key != 'max_tokens'}
        _, answer = self.server.post(CHAT, body)
        self.assertEqual(answer['choices'][0]['finish_reason'], 'length')
        self.assertLessEqual(abs(answer['usage']['total_tokens'] - 512), 1)

    def test_cached_tokens(self):
        body = {**HELLO, 'prompt': list(range(100, 140)), 'n': 2}
        self.server.post(COMPLETIONS, body)
        cached = self.server.post(COMPLETIONS, body)[1]['usage']['prompt_tokens_details']['cached_tokens']
        self.assertTrue(16 <= cached < 40, cached)
        twice = self.server.post(COMPLETIONS, {**body, 'prompt': [body['prompt']] * 2})[1]['usage']['prompt_tokens_details']['cached_tokens']
        self.assertEqual(twice, 2 * cached)

    def test_a_completion_has_16_tokens_by_default(self):
        _, answer = self.server.post(COMPLETIONS, {'prompt': 'hello', 'ignore_eos': True})
        self.assertEqual(answer['usage']['completion_tokens'], 16)

    def test_a_stream_is_the_whole_answer_in_pieces(self):
        for path, hello in ((COMPLETIONS, HELLO), (CHAT, HELLO_CHAT)):
            body = {**hello, 'max_tokens': 40, 'n': 2}
            with self.subTest(path):
                _, whole = self.server.post(path, body)
                events = self.server.events(path, {**body, 'stream_options': {'include_usage': True}})
                self.assertEqual(events.pop(), '[DONE]')
                last = events.pop()
                self.assertEqual(last['choices'], [])
                self.assertEqual({**last['usage'], 'prompt_tokens_details': 0}, {**whole['usage'], 'prompt_tokens_details': 0})
                texts, reasons = ['', ''], [None, None]
                for event in events:
                    self.assertEqual(event['id'], last['id'])
                    self.assertIsNone(event['usage'])
                    [choice] = event['choices']
                    index = choice['index']
                    self.assertIsNone(reasons[index])
                    texts[index] += choice['delta'].get('content', '') if path == CHAT else choice['text']
                    reasons[index] = choice['finish_reason']
                for choice in whole['choices']:
                    text = choice['message']['content'] if path == CHAT else choice['text']
                    self.assertEqual(texts[choice['index']], text)
                    self.assertEqual(reasons[choice['index']], choice['finish_reason'])
                if path == CHAT:
                    self.assertEqual(events[0]['choices'][0]['delta'], {'role': 'assistant', 'content': ''})

    def test_a_stream_without_usage(self):
        events = self.server.events(COMPLETIONS, HELLO)
        self.assertEqual(events[-1], '[DONE]')
        self.assertTrue(all('usage' not in event for event in events[:-1]))

    def test_lists_of_prompts(self):
        _, alone = self.server.post(COMPLETIONS, HELLO)
        _, several = self.server.post(COMPLETIONS, {**HELLO, 'prompt': ['hello there', 'what'], 'n': 2})
        self.assertEqual([choice['index'] for choice in several['choices']], [0, 1, 2, 3])
        for index in (0, 1):  # greedy samples are alike
            self.assertEqual(several['choices'][index]['text'], alone['choices'][0]['text'])
        self.assertEqual(several['choices'][2]['text'], several['choices'][3]['text'])
        self.assertEqual(several['usage']['completion_tokens'], 16)
        tokens = [10, 20, 30]
        _, as_tokens = self.server.post(COMPLETIONS, {**HELLO, 'prompt': tokens})
        self.assertEqual(as_tokens['usage']['prompt_tokens'], 3)
        _, as_lists = self.server.post(COMPLETIONS, {**HELLO, 'prompt': [tokens, [40]]})
        self.assertEqual(as_lists['choices'][0]['text'], as_tokens['choices'][0]['text'])
        self.assertEqual(as_lists['usage']['prompt_tokens'], 4)

    def test_logprobs(self):
        _, answer = self.server.post(COMPLETIONS, {**HELLO, 'logprobs': 3})
        logprobs = answer['choices'][0]['logprobs']
        for key in ('tokens', 'token_logprobs', 'top_logprobs', 'text_offset'):
            self.assertEqual(len(logprobs[key]), 4, key)
        self.assertEqual(logprobs['text_offset'][0], 0)
        many = self.server.post(COMPLETIONS, {**HELLO, 'logprobs': 0, 'max_tokens': 200, 'temperature': 2})[1]['choices'][0]['logprobs']
        self.assertTrue(any(token.startswith('bytes:') for token in many['tokens']))
        for token, begin, end in zip(many['tokens'], many['text_offset'], many['text_offset'][1:]):
            # In characters: one begins with its first byte. A control token prints nothing.
            partial = re.fullmatch(r'bytes:\\x([0-9a-f]{2})', token)
            control = re.fullmatch(r'<\|\w+\|>', token)
            length = 0 if control else len(token) if not partial else 0 if 0x80 <= int(partial[1], 16) < 0xc0 else 1
            self.assertEqual(end - begin, length, token)
        self.assertTrue(all(value <= 0 for value in logprobs['token_logprobs']))
        self.assertTrue(all(1 <= len(top) <= 3 for top in logprobs['top_logprobs']))
        events = self.server.events(COMPLETIONS, {**HELLO, 'logprobs': 3})
        chunks = [event['choices'][0]['logprobs'] for event in events[:-1] if event['choices'][0]['logprobs']]
        for key in logprobs:
            self.assertEqual(sum((chunk[key] for chunk in chunks), []), logprobs[key], key)

        _, answer = self.server.post(CHAT, {**HELLO_CHAT, 'logprobs': True, 'top_logprobs': 2})
        content = answer['choices'][0]['logprobs']['content']
        self.assertEqual(len(content), 4)
        for token in content:
            self.assertEqual(len(token['top_logprobs']), 2)
            self.assertLessEqual(token['logprob'], 0)
            self.assertIsInstance(token['bytes'], list)

    def test_seeds(self):
        body = {**HELLO, 'temperature': 1, 'seed': 5, 'n': 3, 'max_tokens': 20}
        first, second = self.server.post(COMPLETIONS, body)[1], self.server.post(COMPLETIONS, body)[1]
        self.assertEqual(first['choices'], second['choices'])
        self.assertEqual(len({choice['text'] for choice in first['choices']}), 3)
        self.assertEqual(self.server.post(COMPLETIONS, {**body, 'seed': -2})[1]['choices'],
                         self.server.post(COMPLETIONS, {**body, 'seed': 2**64 - 2})[1]['choices'])
        for random_seed in (-1, -1.0, None):  # vllm#4531
            first, second = (self.server.post(COMPLETIONS, {**body, 'seed': random_seed})[1] for _ in range(2))
            self.assertNotEqual(first['choices'], second['choices'])
        del body['seed']
        first, second = self.server.post(COMPLETIONS, body)[1], self.server.post(COMPLETIONS, body)[1]
        self.assertNotEqual(first['choices'], second['choices'])

    def test_all_fields_together(self):
        body = {**HELLO, 'model': 'tiny-512', 'n': 1, 'best_of': 1, 'top_p': 0, 'top_k': -1, 'min_p': 0.1, 'seed': 2**64 - 1,
                'presence_penalty': -2, 'frequency_penalty': 2, 'repetition_penalty': 1.1, 'logit_bias': {'5': -100, '6': 1.5},
                'stop': ['zzzz'], 'stop_token_ids': [0], 'echo': False, 'suffix': None, 'user': 'me', 'stream': False,
                'a field of tomorrow': {'x': [1]}}
        self.assertEqual(self.server.post(COMPLETIONS, body)[0], 200)
        chat = {**HELLO_CHAT, 'max_completion_tokens': 3, 'tools': [], 'tool_choice': 'none', 'response_format': {'type': 'text'},
                'modalities': ['text'], 'logprobs': False}
        self.assertEqual(self.server.post(CHAT, chat)[1]['usage']['completion_tokens'], 3)

    def test_whole_numbers(self):
        """2.0 is 2, and -1 tokens are as many as the context allows."""
        body = {**HELLO, 'prompt': [10, 20, 30], 'temperature': 1, 'max_tokens': 2, 'n': 2, 'seed': 3, 'logprobs': 1, 'stop_token_ids': [5]}
        want = self.server.post(COMPLETIONS, body)[1]
        got = self.server.post(COMPLETIONS, {**body, 'prompt': [10.0, 20.0, 30.0], 'max_tokens': 2.0, 'n': 2.0, 'seed': 3.0, 'logprobs': 1.0,
                                             'top_k': 0.0, 'best_of': 2.0, 'stop_token_ids': [5.0]})[1]
        self.assertEqual(got['choices'], want['choices'])
        for path, body in ((COMPLETIONS, HELLO), (CHAT, HELLO_CHAT), (CHAT, {**HELLO_CHAT, 'max_completion_tokens': -1})):
            _, answer = self.server.post(path, {**body, 'max_tokens': -1})
            self.assertLessEqual(abs(answer['usage']['total_tokens'] - 512), 1)

    def test_echo(self):
        """What lm-evaluation-harness sends: the log probabilities of the prompt, and 0 or 1 tokens more."""
        prompt = [10, 20, 30, 40, 50]
        body = {'prompt': prompt, 'echo': True, 'logprobs': 3, 'temperature': 0, 'ignore_eos': True}
        status, answer = self.server.post(COMPLETIONS, {**body, 'max_tokens': 0})
        self.assertEqual(status, 200, answer)
        [choice] = answer['choices']
        self.assertEqual((choice['finish_reason'], answer['usage']['completion_tokens']), ('length', 0))
        logprobs = choice['logprobs']
        for key in ('tokens', 'token_logprobs', 'top_logprobs', 'text_offset'):
            self.assertEqual(len(logprobs[key]), 5, key)
            self.assertIsNone(logprobs['token_logprobs'][0])
            self.assertIsNone(logprobs['top_logprobs'][0])
        # Each is the log probability that the token has as an answer to those before it.
        for i in range(1, 5):
            forced = {**body, 'echo': False, 'prompt': prompt[:i], 'max_tokens': 1, 'logit_bias': {str(prompt[i]): 100}, 'logprobs': 3}
            alone = self.server.post(COMPLETIONS, forced)[1]['choices'][0]['logprobs']
            self.assertEqual(alone['tokens'][0], logprobs['tokens'][i])
            self.assertAlmostEqual(alone['token_logprobs'][0], logprobs['token_logprobs'][i], delta=1e-4)
            self.assertEqual(list(alone['top_logprobs'][0]), list(logprobs['top_logprobs'][i]))
        one = self.server.post(COMPLETIONS, {**body, 'max_tokens': 1})[1]['choices'][0]
        self.assertEqual(one['logprobs']['token_logprobs'][:5], logprobs['token_logprobs'])
        self.assertEqual(len(one['logprobs']['tokens']), 6)
        # As the harness looks for greedy tokens.
        self.assertEqual(one['logprobs']['token_logprobs'][5], max(one['logprobs']['top_logprobs'][5].values()))
        self.assertTrue(one['text'].startswith(choice['text']))

        texts = {**HELLO, 'prompt': ['hello there', 'what'], 'n': 2, 'echo': True, 'logprobs': 1}
        _, answer = self.server.post(COMPLETIONS, texts)
        plain = self.server.post(COMPLETIONS, {**texts, 'echo': False})[1]
        for i, (choice, without) in enumerate(zip(answer['choices'], plain['choices'])):
            prompt = texts['prompt'][i // 2]
            self.assertEqual(choice['text'], prompt + without['text'])
            self.assertEqual(choice['logprobs']['text_offset'][-4:], [len(prompt) + at for at in without['logprobs']['text_offset']])
        self.assertEqual(answer['usage'], {**plain['usage'], 'prompt_tokens_details': answer['usage']['prompt_tokens_details']})
        for more in ({}, {'max_tokens': 0}):
            whole = self.server.post(COMPLETIONS, {**texts, **more})[1]
            chunks = [event['choices'][0] for event in self.server.events(COMPLETIONS, {**texts, **more})[:-1]]
            for choice in whole['choices']:
                mine = [chunk for chunk in chunks if chunk['index'] == choice['index']]
                self.assertEqual(''.join(chunk['text'] for chunk in mine), choice['text'])
                self.assertEqual(mine[-1]['finish_reason'], choice['finish_reason'])
                for key in choice['logprobs']:
                    self.assertEqual(sum((chunk['logprobs'][key] for chunk in mine if chunk['logprobs']), []), choice['logprobs'][key], key)
        for more in ({}, {'logprobs': 0}):
            _, answer = self.server.post(COMPLETIONS, {'prompt': ['hello there', 'h'], 'echo': True, 'max_tokens': 0, **more})
            self.assertEqual([(choice['text'], choice['logprobs'] is None) for choice in answer['choices']],
                             [(text, not more) for text in ('hello there', 'h')])
        self.assertEqual(self.server.post(COMPLETIONS, {'prompt': [7], 'echo': True, 'max_tokens': 0, 'logprobs': 1})[0], 200)
        self.assertEqual(self.server.post(COMPLETIONS, {'prompt': [7] * 512, 'echo': True, 'max_tokens': 0, 'logprobs': 1})[0], 200)
        self.assert_error(self.server.post(COMPLETIONS, {'prompt': [7] * 513, 'echo': True, 'max_tokens': 0}), 400, 'prompt')
        self.assert_error(self.server.post(COMPLETIONS, {'prompt': [[7] * 500] * 100, 'n': 20, 'echo': True, 'logprobs': 1}), 400, 'echo')

    def test_salts(self):
        body = {**HELLO, 'prompt': list(range(60, 100))}

        def cached(**more):
            return self.server.post(COMPLETIONS, {**body, **more})[1]['usage']['prompt_tokens_details']['cached_tokens']
        self.assertEqual([cached(cache_salt='a'), cached(cache_salt='b'), cached()], [0, 0, 0])
        self.assertGreater(cached(cache_salt='a'), 0)
        self.assertGreater(cached(), 0)

    def test_stop(self):
        _, answer = self.server.post(COMPLETIONS, {**HELLO, 'max_tokens': 30})
        text = answer['choices'][0]['text']
        stop = text[len(text) // 2]
        for body in ({'stop': stop}, {'stop': [stop, 'zzzz']}):
            _, stopped = self.server.post(COMPLETIONS, {**HELLO, 'max_tokens': 30, **body})
            self.assertEqual(stopped['choices'][0]['text'], text[:text.index(stop)])
            self.assertEqual(stopped['choices'][0]['finish_reason'], 'stop')

    def test_models(self):
        status, _, models = self.server.request('GET', '/v1/models')
        self.assertEqual(status, 200)
        self.assertEqual(models['object'], 'list')
        [model] = models['data']
        self.assertEqual((model['id'], model['object'], model['owned_by']), ('tiny-512', 'model', 'prologue'))
        self.assertEqual(self.server.request('GET', '/v1/models/tiny-512')[2], model)
        status, _, error = self.server.request('GET', '/v1/models/other')
        self.assert_error((status, error), 404, 'model', 'model_not_found')

    def test_metrics(self):
        def idle():  # the engine has counted its last step
            values = self.server.metrics()
            return values['prologue_running'] == values['prologue_waiting'] == 0

        def responses():
            return {name: value for name, value in self.server.metrics().items() if name.startswith('prologue_http_responses_total')
                    and '/metrics' not in name}

        def settled():  # a response is counted when it has been sent, after the engine's last step
            first = responses()
            time.sleep(0.3)
            return responses() == first
        self.wait_for('the end of other requests', idle)
        self.wait_for('the count of other responses', settled)
        before = self.server.metrics()
        counted = sum(responses().values())
        self.server.post(COMPLETIONS, HELLO)
        self.server.post(COMPLETIONS, {**HELLO, 'n': 0})
        self.server.request('GET', '/nowhere')
        self.wait_for('the end of the request', idle)
        self.wait_for('the count of its three responses', lambda: sum(responses().values()) >= counted + 3)
        after = self.server.metrics()

        def grown(name):
            return after[name] - before.get(name, 0)
        self.assertEqual(grown('prologue_generated_tokens_total'), 4)
        self.assertEqual(grown('prologue_finished_total{reason="length"}'), 1)
        self.assertEqual(grown('prologue_http_responses_total{path="/v1/completions",code="200"}'), 1)
        self.assertEqual(grown('prologue_http_responses_total{path="/v1/completions",code="400"}'), 1)
        self.assertEqual(grown('prologue_http_responses_total{path="other",code="404"}'), 1)
        self.assertEqual(grown('prologue_time_to_first_token_seconds_count'), 1)
        self.assertEqual(grown('prologue_time_per_output_token_seconds_count'), 3)
        self.assertEqual(grown('prologue_request_duration_seconds_bucket{le="+Inf"}'), 1)
        # Every sample has its HELP and TYPE.
        text = self.server.request('GET', '/metrics')[2].decode()
        described = set(re.findall(r'^# TYPE (\S+) (?:counter|gauge|histogram)$', text, re.M))
        self.assertEqual(described, set(re.findall(r'^# HELP (\S+) \S.*\.$', text, re.M)))
        for line in text.splitlines():
            if not line.startswith('#'):
                name = re.match(r'\w+', line)[0]
                self.assertTrue({name, re.sub(r'_(bucket|sum|count)$', '', name)} & described, line)

    def test_the_page_has_a_strict_policy(self):
        status, headers, page = self.server.request('GET', '/')
        self.assertEqual(status, 200)
        policy = headers['Content-Security-Policy']
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn('unsafe', policy)
        nonce = re.search(r"script-src 'nonce-(\w+)'", policy)[1]
        self.assertIn(f'<script nonce="{nonce}">'.encode(), page)
        self.assertNotIn(b'@NONCE@', page)
        self.assertNotEqual(self.server.request('GET', '/')[1]['Content-Security-Policy'], policy)
        self.assertIsNone(re.search(rb'innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval', page))


class BadFields(ServerTest):
    COMPLETION_FIELDS = [
        ('prompt', None), ('prompt', 5), ('prompt', ''), ('prompt', []), ('prompt', {}), ('prompt', True), ('prompt', [1.5]),
        ('prompt', [-1]), ('prompt', [10**6]), ('prompt', [2**70]), ('prompt', ['a', 1]), ('prompt', [[1], ['a']]), ('prompt', [[]]),
        ('prompt', [1, 'a']), ('prompt', ['a'] * 2049), ('prompt', [7] * 512), ('prompt', 'x' * 5000),
        ('max_tokens', 0), ('max_tokens', -2), ('max_tokens', 1.5), ('max_tokens', 1e300), ('max_tokens', 2.0**53), ('max_tokens', '5'), ('max_tokens', 2**31), ('max_tokens', 2**64),
        ('max_tokens', -2**63), ('max_tokens', True), ('max_tokens', [1]),
        ('temperature', -0.1), ('temperature', 2.1), ('temperature', 'hot'), ('temperature', 1e308), ('temperature', [0]),
        ('top_p', -0.1), ('top_p', 1.1), ('min_p', 2), ('top_k', -2), ('top_k', 1.5), ('top_k', 2**31), ('top_k', 2.0**31),
        ('presence_penalty', 2.5), ('frequency_penalty', -2.5), ('repetition_penalty', 0), ('repetition_penalty', -1),
        ('n', 0), ('n', 129), ('n', '1'), ('best_of', 2), ('best_of', 'x'), ('seed', 1.5), ('seed', 2**64), ('seed', 1e300), ('seed', 'x'),
        ('stop', 5), ('stop', ''), ('stop', ['a', '']), ('stop', [5]), ('stop', ['x'] * 17), ('stop', {}),
        ('stop_token_ids', 5), ('stop_token_ids', [-1]), ('stop_token_ids', [10**6]), ('stop_token_ids', ['a']),
        ('logit_bias', []), ('logit_bias', {'a': 1}), ('logit_bias', {'-1': 1}), ('logit_bias', {'1000000': 1}),
        ('logit_bias', {'5': 101}), ('logit_bias', {'5': 'x'}), ('logit_bias', {'5 ': 1}),
        ('logprobs', -1), ('logprobs', 21), ('logprobs', True), ('stream', 1), ('stream', 'true'), ('ignore_eos', 0),
        ('stream_options', {'include_usage': True}), ('model', 5),
        ('echo', 1), ('suffix', 'x'), ('tools', [{}]), ('guided_json', {'type': 'object'}), ('response_format', {'type': 'json_object'}),
        ('response_format', 5), ('min_tokens', 3), ('echo', 'yes'), ('n', 128.5), ('stop', 'x' * 1025), ('stop', ['x', 'é' * 513]),
        ('stop_token_ids', list(range(200)) * 6), ('logit_bias', {str(i): 0 for i in range(2000)}), ('cache_salt', ''), ('cache_salt', 5),
        ('cache_salt', 'x' * 257), ('stream_options', 5),
    ]
    CHAT_FIELDS = [
        ('messages', None), ('messages', []), ('messages', 'hi'), ('messages', {}), ('messages', [{'role': 'user', 'content': 'x' * 5000}]),
        ('max_completion_tokens', 0), ('max_completion_tokens', -2), ('max_tokens', 0), ('echo', True), ('top_logprobs', 2), ('top_logprobs', 21), ('logprobs', 3),
        ('tool_choice', 'required'), ('tools', [{'type': 'function'}]), ('functions', [{}]), ('modalities', ['audio']),
        ('audio', {'voice': 'x'}), ('response_format', {'type': 'json_schema'}),
    ]
    MESSAGES = [
        ('messages[0]', 5), ('messages[0].role', {}), ('messages[0].role', {'role': 5, 'content': 'x'}),
        ('messages[0].role', {'role': 'tool', 'content': 'x'}), ('messages[0].role', {'role': '<|im_end|>', 'content': 'x'}),
        ('messages[0].content', {'role': 'user'}), ('messages[0].content', {'role': 'user', 'content': None}),
        ('messages[0].content', {'role': 'user', 'content': 5}), ('messages[0].content', {'role': 'user', 'content': [5]}),
        ('messages[0].content', {'role': 'user', 'content': [{'type': 'image_url', 'image_url': {'url': 'x'}}]}),
        ('messages[0].content.text', {'role': 'user', 'content': [{'type': 'text'}]}),
        ('messages[0].content.text', {'role': 'user', 'content': [{'type': 'text', 'text': 5}]}),
        ('messages[0].tool_calls', {'role': 'assistant', 'content': None, 'tool_calls': [{}]}),
        ('messages[0].prefix', {'role': 'assistant', 'content': 'x', 'prefix': True}),
        ('messages[0].reasoning_content', {'role': 'assistant', 'content': 'x', 'reasoning_content': 5}),
    ]

    def test_each_names_itself(self):
        for path, hello, cases in ((COMPLETIONS, HELLO, self.COMPLETION_FIELDS), (CHAT, HELLO_CHAT, self.CHAT_FIELDS)):
            for name, value in cases:
                with self.subTest(path=path, name=name, value=str(value)[:50]):
                    error = self.assert_error(self.server.post(path, {**hello, name: value}), 400, name)
                    self.assertEqual(error['type'], 'invalid_request_error')
                    self.assertIn(f"'{name}'", error['message'])
        for param, message in self.MESSAGES:
            with self.subTest(message=message):
                self.assert_error(self.server.post(CHAT, {**HELLO_CHAT, 'messages': [message]}), 400, param)

    def test_codes(self):
        too_long = self.server.post(COMPLETIONS, {**HELLO, 'prompt': [7] * 600})
        self.assert_error(too_long, 400, 'prompt', 'context_length_exceeded')
        self.assert_error(self.server.post(COMPLETIONS, {**HELLO, 'model': 'gpt-4'}), 404, 'model', 'model_not_found')
        self.assert_error(self.server.post(COMPLETIONS, {**HELLO, 'suffix': 'x'}), 400, 'suffix', 'unsupported_value')

    def test_null_is_absent(self):
        self.assertEqual(self.server.post(COMPLETIONS, {**HELLO, **dict.fromkeys(
            ['n', 'stop', 'seed', 'stream', 'stream_options', 'logprobs', 'logit_bias', 'model', 'tools', 'top_p'])})[0], 200)

    def test_what_is_not_a_json_object(self):
        for body in (b'', b' ', b'{', b'nonsense', b'[]', b'5', b'null', b'"x"', b'{"prompt":}', b'{"prompt": "x"} x', b"{'prompt': 'x'}",
                     b'{"prompt": "\xff\xfe"}', b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "\\ud800"}', b'{"prompt": "\\u12"}',
                     b'{"temperature": 1e999}', b'{"temperature": NaN}', b'{"prompt": "a\nb"}', b'\x00' * 100, b'{"prompt": "x"',
                     b'[' * 100000, b'{"a":' * 50000, b'{"prompt": ' + b'[' * 40 + b']' * 40 + b'}', b'{"n": ' + b'9' * 10000 + b'}'):
            with self.subTest(body[:30]):
                self.assert_error(self.server.post(COMPLETIONS, body), 400)
                self.assert_error(self.server.post(CHAT, body), 400)
        self.assert_alive()

    def test_text_that_is_unusual_but_valid(self):
        for text in ('\0', '\u2028', '😀', '\ud7ff', '<|im_end|>', '\u202e', 'a' * 400):
            with self.subTest(text):
                self.assertEqual(self.server.post(COMPLETIONS, {**HELLO, 'prompt': text})[0], 200)
                self.assertEqual(self.server.post(CHAT, {**HELLO_CHAT, 'messages': [{'role': 'user', 'content': text}]})[0], 200)


class FieldsOfOthers(ServerTest):
    CHANGE_THE_ANSWER = [
        ('grammar', 'root ::= "a"'), ('json_schema', {}), ('regex', 'a+'), ('ebnf', 'root ::= "a"'), ('allowed_token_ids', [1]),
        ('bad_words', ['a']), ('truncate_prompt_tokens', 5), ('mirostat', 2), ('mirostat_tau', 3), ('typical_p', 0.5), ('dry_multiplier', 0.8),
        ('dry_base', 2), ('dry_something_new', 1), ('xtc_probability', 0.5), ('xtc_threshold', 0.3), ('reasoning_effort', 'low'),
        ('guided_json', {}), ('guided_whatever', 'x'), ('structured_outputs', {'choice': ['a']}), ('min_tokens', 2), ('use_beam_search', True),
        ('length_penalty', 2), ('prompt_logprobs', 0), ('thinking', {'type': 'enabled'}), ('thinking_budget_tokens', 5), ('reasoning_budget', 0),
        ('lora', [{'id': 0, 'scale': 1}]), ('lora_path', 'x'), ('adapter_id', 'x'), ('logits_processors', ['x']), ('watermark', True),
        ('top_n_sigma', 1), ('tfs_z', 0.5), ('samplers', ['top_k']), ('stop_regex', 'x'), ('include_stop_str_in_output', True),
        ('skip_special_tokens', False), ('options', {'num_predict': 3}), ('format', 'json'), ('think', True), ('system', 'x'),
        ('response_format', {'type': 'json_object'}), ('tools', [{}]), ('verbosity', 'low'), ('repeat_penalty', 1.3), ('n_predict', 3),
        ('max_new_tokens', 3), ('return_token_ids', True), ('input_ids', [1]), ('num_beams', 4), ('no_repeat_ngram_size', 2),
        ('add_special_tokens', 'x'), ('chat_template', '{{ messages }}'), ('documents', [{}]), ('banned_strings', ['a']),
    ]
    OF_COMPLETIONS = [('chat_template_kwargs', {'a': 1}), ('continue_final_message', True), ('add_generation_prompt', False), ('messages', [])]
    OF_CHATS = [('echo', True), ('prompt', 'x'), ('suffix', 'x')]
    CHANGE_NOTHING = {
        'grammar': '', 'mirostat': 0, 'mirostat_tau': 5, 'typical_p': 1.0, 'dry_multiplier': 0, 'dry_base': 1.75, 'dry_allowed_length': 2,
        'dry_sequence_breakers': ['\n', ':', '"', '*'], 'xtc_probability': 0, 'xtc_threshold': 0.1, 'reasoning_effort': None, 'min_tokens': 0,
        'use_beam_search': False, 'length_penalty': 1.0, 'tools': [], 'functions': [], 'tool_choice': 'auto', 'parallel_tool_calls': True,
        'response_format': {'type': 'text'}, 'skip_special_tokens': True, 'lora': [], 'bad_words': [], 'repeat_penalty': 1, 'repeat_last_n': -1,
        'json_schema': None, 'num_beams': 1, 'chat_template_kwargs': {}, 'continue_final_message': False, 'add_generation_prompt': True,
        'user': 'me', 'metadata': {'a': 'b'}, 'store': True, 'service_tier': 'auto', 'safety_identifier': 'x', 'prompt_cache_key': 'x', 'cache_prompt': True,
    }

    def test_what_changes_the_answer_is_refused_by_name(self):
        for path, hello, more in ((COMPLETIONS, HELLO, self.OF_COMPLETIONS), (CHAT, HELLO_CHAT, self.OF_CHATS)):
            for name, value in self.CHANGE_THE_ANSWER + more:
                with self.subTest(path=path, name=name):
                    error = self.assert_error(self.server.post(path, {**hello, name: value}), 400, name, 'unsupported_value')
                    self.assertIn(f"'{name}'", error['message'])
                    self.assertEqual(self.server.post(path, {**hello, name: None})[0], 200)

    def test_messages_say_what_may_be_sent(self):
        def message(path=COMPLETIONS, **field):
            return self.server.post(path, {**(HELLO if path == COMPLETIONS else HELLO_CHAT), **field})[1]['error']['message']
        self.assertEqual(message(tool_choice='required'), "'tool_choice' is not supported, except \"none\" and \"auto\"")
        self.assertEqual(message(min_tokens=5), "'min_tokens' is not supported, except 0")
        self.assertEqual(message(regex='x'), "'regex' is not supported")
        self.assertEqual(message(n_predict=5), "'n_predict' is not supported: use 'max_tokens'")
        self.assertEqual(message(repeat_penalty=2), "'repeat_penalty' is not supported, except 1: use 'repetition_penalty'")
        # A field is only named where it is read.
        self.assertEqual(message(CHAT, reasoning_effort='low'), "'reasoning_effort' is not supported: use 'chat_template_kwargs'")
        self.assertEqual(message(reasoning_effort='low'), "'reasoning_effort' is not supported")

    def test_values_that_change_nothing(self):
        for path, hello in ((COMPLETIONS, HELLO), (CHAT, HELLO_CHAT)):
            status, answer = self.server.post(path, {**hello, **self.CHANGE_NOTHING})
            self.assertEqual(status, 200, answer)

    def test_unknown_ones_are_named_once(self):
        for _ in range(3):
            self.assertEqual(self.server.post(COMPLETIONS, {**HELLO, 'temprature': 1, 'odd\n\x1b[2J': 1})[0], 200)
        self.assertEqual(self.server.post(CHAT, {**HELLO_CHAT, 'messages': [{'role': 'user', 'content': 'x', 'mood': 'good', 'name': 'Ann'}]})[0], 200)
        lines = [line for line in self.server.stderr().splitlines() if 'is not known' in line]
        self.assertEqual(sorted(lines), [
            "serve: the field 'mood' of requests is not known: it is ignored, and not named again",
            "serve: the field 'odd\\x0a\\x1b[2J' of requests is not known: it is ignored, and not named again",
            "serve: the field 'temprature' of requests is not known (did you mean 'temperature'?): it is ignored, and not named again"])


class ManyUnknownFields(ServerTest):
    def test_names_have_a_bound(self):
        for i in range(0, 400, 200):
            fields = {f'field_{j:05}' + 'x' * 10000: 1 for j in range(i, i + 200)}
            self.assertEqual(self.server.post(COMPLETIONS, {**HELLO, **fields})[0], 200)
        self.assertEqual(self.server.stderr().count('is not known'), 64)
        self.assertLess(len(self.server.stderr()), 20000)
        self.assert_error(self.server.post(COMPLETIONS, {**HELLO, **{str(i): 1 for i in range(300)}}), 400)


class Strict(ServerTest):
    arguments = ('--strict', '--private-prefixes')

    def test_unknown_fields_are_refused(self):
        error = self.assert_error(self.server.post(COMPLETIONS, {**HELLO, 'top_kk': 5}), 400, 'top_kk', 'unknown_field')
        self.assertEqual(error['message'], "'top_kk' is not a field that the server knows (did you mean 'top_k'?): it ignores none (--strict)")
        message = {'role': 'user', 'content': [{'type': 'text', 'text': 'x', 'tone': 5}]}
        self.assert_error(self.server.post(CHAT, {**HELLO_CHAT, 'messages': [message]}), 400, 'messages[0].content.tone', 'unknown_field')
        self.assert_error(self.server.post(COMPLETIONS, {**HELLO, 'stream': True, 'stream_options': {'a': 1}}), 400, 'stream_options.a', 'unknown_field')
        error = self.assert_error(self.server.post(CHAT, {**HELLO_CHAT, 'x' * 100000: 0}), 400, code='unknown_field')
        self.assertLess(len(str(error)), 1000)
        for path, hello in ((COMPLETIONS, HELLO), (CHAT, HELLO_CHAT)):
            self.assertEqual(self.server.post(path, {**hello, **FieldsOfOthers.CHANGE_NOTHING, 'x': None})[0], 200)

    def test_prefixes_are_private(self):
        body = {**HELLO, 'prompt': list(range(60, 100))}

        def cached(**more):
            return self.server.post(COMPLETIONS, {**body, **more})[1]['usage']['prompt_tokens_details']['cached_tokens']
        self.assertEqual([cached(), cached(), cached(cache_salt='a')], [0, 0, 0])
        self.assertGreater(cached(cache_salt='a'), 0)


class Speculation(ServerTest):
    arguments = ('--speculate', 'ngram', '--batch-invariant')

    def test_a_prediction_changes_no_text(self):
        body = {**HELLO_CHAT, 'max_tokens': 60, 'ignore_eos': True}
        before = self.server.metrics()
        answers = [self.server.post(CHAT, body)[1]]
        text = answers[0]['choices'][0]['message']['content']
        for content in (text, 'something else', [{'type': 'text', 'text': text[:20]}, {'type': 'text', 'text': text[20:]}], ''):
            answers.append(self.server.post(CHAT, {**body, 'prediction': {'type': 'content', 'content': content}})[1])
        self.assertEqual({answer['choices'][0]['message']['content'] for answer in answers}, {text})
        details = [answer['usage'].get('completion_tokens_details', {}) for answer in answers]
        accepted = sum(each.get('accepted_prediction_tokens', 0) for each in details)
        rejected = sum(each.get('rejected_prediction_tokens', 0) for each in details)
        after = self.server.metrics()
        self.assertEqual(after['prologue_accepted_tokens_total'] - before['prologue_accepted_tokens_total'], accepted)
        self.assertEqual(after['prologue_draft_tokens_total'] - before['prologue_draft_tokens_total'], accepted + rejected)

    def test_a_prediction_is_checked(self):
        for prediction, param in (('x', 'prediction'), ({}, 'prediction.type'), ({'type': 'other', 'content': 'x'}, 'prediction.type'),
                                  ({'type': 'content'}, 'prediction.content'), ({'type': 'content', 'content': 5}, 'prediction.content'),
                                  ({'type': 'content', 'content': ['x']}, 'prediction.content'),
                                  ({'type': 'content', 'content': [{'type': 'text'}]}, 'prediction.content')):
            self.assert_error(self.server.post(COMPLETIONS, {**HELLO, 'prediction': prediction}), 400, param)


class RecommendedSampling(ServerTest):
    recommended_top_k = ('1',)

    def test_it_holds_where_a_request_names_none(self):
        body = {'prompt': 'hello there', 'max_tokens': 20, 'ignore_eos': True}
        greedy = self.server.post(COMPLETIONS, {**body, 'temperature': 0})[1]['choices'][0]['text']
        for seed in (1, 2):
            self.assertEqual(self.server.post(COMPLETIONS, {**body, 'seed': seed})[1]['choices'][0]['text'], greedy)
            self.assertNotEqual(self.server.post(COMPLETIONS, {**body, 'seed': seed, 'top_k': 0})[1]['choices'][0]['text'], greedy)


class LargeBodies(ServerTest):
    """A body costs a time that grows with its length, and no more memory than some times its length."""
    context = LONG_CONTEXT
    parallel = 2

    def resident(self):
        with open(f'/proc/{self.server.process.pid}/status', encoding='utf-8') as status:
            return int(re.search(r'VmHWM:\s+(\d+) kB', status.read())[1]) << 10

    def test_time(self):
        objects = b'[{}' + b',{}' * 350000 + b']'
        names = b','.join(b'"%s%d":0' % (b'max_toke' if i % 2 else b'', i) for i in range(200))
        for path, body, *statuses in [  # a time that grows with the square would be minutes
                (COMPLETIONS, b'{"prompt": "x", "max_tokens": 1, "x": %s}' % objects, 200),
                (COMPLETIONS, b'{"prompt": "x", "max_tokens": 1, "x": [%s]}' % b','.join([b'{"a":[{}]}'] * 100000), 200),
                (COMPLETIONS, b'{"prompt": %s}' % objects, 400), (COMPLETIONS, b'{"prompt": [' + b'[],' * 400000 + b'[]]}', 400),
                (COMPLETIONS, objects, 400), (CHAT, b'{"messages": %s}' % objects, 400),
                (COMPLETIONS, b'{"x": {' + b','.join(b'"%d":0' % i for i in range(100000)) + b'}}', 400),
                (CHAT, b'{"messages": [' + b','.join([b'{"role":"user","content":"",%s}' % names] * 1500) + b',{"role":"x"}]}', 400)]:
            answer = self.server.post(path, body)
            self.assertIn(answer[0], statuses, (body[:60], str(answer[1])[:200]))

    def test_memory(self):
        stops = {'stop': [chr(97 + i) * 1024 for i in range(16)], 'stop_token_ids': [1] * 1024, 'logit_bias': {str(i): 1 for i in range(256)}}
        sizes = {'max_tokens': 1, 'ignore_eos': True}
        million = 1 << 20
        scored = 23 if serve_support.is_sanitized() else 230  # of 200 tokens: near the bound of an answer
        before = self.resident()
        for status, path, body in [
                (200, COMPLETIONS, {'prompt': ['a'] * 2048, **sizes, **stops}),
                (200, COMPLETIONS, {'prompt': ['a'] * 16, 'n': 128, **sizes, **stops}),
                (400, COMPLETIONS, {'prompt': ['a'] * 17, 'n': 128, **sizes}),
                (400, COMPLETIONS, {'prompt': ['a'], **sizes, 'stop_token_ids': [1] * million}),
                (400, COMPLETIONS, {'prompt': ['a'] * 2048, **sizes, 'stop': 'x' * (2 * million)}),
                (400, COMPLETIONS, {'prompt': [1] * (2 * million - 100)}),
                (400, COMPLETIONS, {'prompt': [[1]] * (million - 100)}),
                (400, COMPLETIONS, {'prompt': 'x' * (4 * million - 100)}),
                (413, COMPLETIONS, {'prompt': [0] * (2 * million)}),
                (200, COMPLETIONS, {'prompt': 'x', 'y': [{'a': 1}] * (million // 3), **sizes}),
                (200, COMPLETIONS, {'prompt': ['h' * 200] * scored, 'echo': True, 'logprobs': 20, **sizes}),
                (200, CHAT, {'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': ''}] * 120000}], **sizes})]:
            answer = self.server.post(path, json.dumps(body, separators=(',', ':')).encode())
            self.assertEqual(answer[0], status, (str(body)[:60], str(answer[1])[:300]))
            if not serve_support.is_sanitized():
                self.assertLess(self.resident() - before, 400 << 20, str(body)[:60])

    def test_what_prompts_have_in_common_is_not_copied(self):
        before = self.resident()
        with self.server.connect() as connection:
            connection.sendall(post(json.dumps({'prompt': [list(range(100)) * 300] * 16, 'n': 128, 'max_tokens': 1}).encode()))
            self.wait_for('the start', lambda: self.server.metrics()['prologue_running'] > 0)
        self.wait_for('the end', lambda: self.server.metrics()['prologue_running'] == self.server.metrics()['prologue_waiting'] == 0)
        if not serve_support.is_sanitized():
            self.assertLess(self.resident() - before, 400 << 20)  # the prompts of all samples would be 245 MB more than this

    def test_many_samples_starve_nobody(self):
        with self.server.connect() as first:
            first.sendall(post(json.dumps({**ENDLESS, 'n': 128}).encode()))
            self.wait_for('the start', lambda: self.server.metrics()['prologue_running'] == 2)
            for _ in range(3):
                self.assertEqual(self.server.post(COMPLETIONS, HELLO)[0], 200)
        with self.server.connect() as first:
            first.sendall(post(json.dumps({**ENDLESS, 'prompt': ['a', 'b', 'c', 'd', 'e']}).encode()))
            self.wait_for('the start', lambda: self.server.metrics()['prologue_running'] == 2)
            self.assertEqual(self.server.post(COMPLETIONS, HELLO)[0], 200)

    def test_an_echo_ends_with_its_client(self):
        body = {'prompt': list(range(100)) * 600, 'echo': True, 'max_tokens': 0, 'logprobs': 1}
        with self.server.connect() as connection:
            connection.sendall(post(json.dumps(body).encode()))
            time.sleep(0.5)
            self.assertEqual(self.server.post(COMPLETIONS, HELLO)[0], 200)  # in between


class Paths(ServerTest):
    def test_unknown_ones(self):
        for path in ('/v1', '/v1/', '/v1/embeddings', '/health/', '/../etc/passwd', '/%2e%2e/', '/v1/completions/', '//', '/%00', '/index.html'):
            for method in ('GET', 'POST', 'PUT', 'DELETE', 'OPTIONS', 'PATCH'):
                with self.subTest(path=path, method=method):
                    status, _, content = self.server.request(method, path, body='{}')
                    self.assert_error((status, content), 404, code='not_found')

    def test_wrong_methods(self):
        for path, allowed in ((COMPLETIONS, 'POST'), (CHAT, 'POST'), ('/v1/models', 'GET, HEAD'), ('/', 'GET, HEAD'), ('/health', 'GET, HEAD')):
            for method in ('GET', 'POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS', 'TRACE'):
                if method in allowed:
                    continue
                with self.subTest(path=path, method=method):
                    status, headers, content = self.server.request(method, path)
                    self.assert_error((status, content), 405, code='method_not_allowed')
                    self.assertEqual(headers['Allow'], allowed)

    def test_head(self):
        status, headers, content = self.server.request('HEAD', '/health')
        self.assertEqual((status, content, headers['Content-Length']), (200, b'', '15'))

    def test_content_types(self):
        body = json.dumps(HELLO)
        for good in ('application/json', 'Application/JSON; charset=utf-8'):
            self.assertEqual(self.server.request('POST', COMPLETIONS, body, {'Content-Type': good})[0], 200, good)
        for bad in ('text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data; boundary=x', 'application/jsonx', ''):
            status, _, content = self.server.request('POST', COMPLETIONS, body, {'Content-Type': bad})
            self.assert_error((status, content), 415)
        status, _, content = self.server.request('POST', COMPLETIONS, body, {'Content-Encoding': 'gzip'})
        self.assert_error((status, content), 415)


class Key(ServerTest):
    arguments = ('--api-key', 'a secret', '--model-name', 'my model')

    def test_it_is_needed_below_v1(self):
        for key in (None, 'Bearer', 'Bearer ', 'Bearer a secre', 'Bearer a secret ', 'Bearer a secretx', 'Bearer b secret', 'Bearer a secreT', 'a secret', 'Basic a secret'):
            headers = {'Authorization': key} if key is not None else {}
            for method, path in (('POST', COMPLETIONS), ('POST', CHAT), ('GET', '/v1/models'), ('GET', '/v1/models/x')):
                with self.subTest(key=key, path=path):
                    status, sent, content = self.server.request(method, path, HELLO, headers)
                    if key == 'Bearer a secret ':  # spaces around a header's value do not belong to it
                        self.assertNotEqual(status, 401)
                        continue
                    self.assert_error((status, content), 401, code='invalid_api_key')
                    self.assertEqual(sent['WWW-Authenticate'], 'Bearer')
        good = {'Authorization': 'Bearer a secret'}
        self.assertEqual(self.server.request('POST', COMPLETIONS, HELLO, good)[0], 200)
        self.assertEqual(self.server.request('GET', '/v1/models', headers=good)[2]['data'][0]['id'], 'my model')
        for path in ('/', '/health', '/metrics'):
            self.assertEqual(self.server.request('GET', path)[0], 200)
        # The bytes of a header are taken as they are: nothing is decoded.
        for key in ('Bearer a%20secret', 'Bearer a secret%00', 'Bearer a secre%74', 'Bearer%20a secret'):
            self.assertEqual(self.server.request('GET', '/v1/models', headers={'Authorization': key})[0], 401, key)
        for path in ('/v1/models%00', '/v1%2fmodels', '/%76%31/models', '/v1/models/%00'):
            self.assertIn(self.server.request('GET', path)[0], (401, 404), path)


class MalformedHttp(ServerTest):
    arguments = ('--read-timeout', '2', '--max-body', '100K')

    def tearDown(self):
        self.assert_alive()

    def check(self, data, *statuses, **more):
        """None among the statuses: the connection may also be closed without an answer."""
        response = self.server.exchange(data, **more)
        self.assertIn(status_of(response), statuses, response[:200])
        if response:
            head, _, body = response.partition(b'\r\n\r\n')
            self.assertIn(b'Connection: close', head)
            if status_of(response) >= 400:
                self.assertEqual(set(json.loads(body)['error']), {'message', 'type', 'param', 'code'}, response)
        return response

    def test_request_lines(self):
        for line in (b'nonsense', b'GET', b'GET /health', b'GET /health HTTP/9.9', b'GET /health HTTP/1.1 x', b'get /health HTTP/1.1',
                     b'FETCH /health HTTP/1.1', b'GET /health\tHTTP/1.1', b'GET /he\x00alth HTTP/1.1', b'\x16\x03\x01\x02\x00\x01\x00', b'\xff' * 100, b' ',
                     b'PRI * HTTP/2.0', b'GET /a?b?c HTTP/1.1'):
            with self.subTest(line):
                self.check(line + b'\r\n\r\n', 400, 404, None)
        self.check(b'GET /health HTTP/1.1\n\n', 400, None, end=True)
        self.check(b'GET /' + b'x' * 9000 + b' HTTP/1.1\r\n\r\n', 414)
        self.check(b'GET /health HTTP/1.0\r\n\r\n', 200)
        self.check(b'CONNECT example.org:80 HTTP/1.1\r\n\r\n', 400, 404)
        self.check(b'', None, end=True)

    def test_headers(self):
        get = b'GET /health HTTP/1.1\r\nConnection: close\r\n'
        self.check(get + b'no colon\r\n: no name\r\n\x00\xff: x\r\n\r\n', 200, 400)
        self.check(get + b'x' * 9000 + b': y\r\n\r\n', 200)
        self.check(get + b'x' * 17000 + b': y\r\n\r\n', 431)
        self.check(get + b'x: ' + b'y' * 200000, 431, 400)  # a line without an end
        self.check(get + b'x: y\r\n' * 20000 + b'\r\n', 431, 400)
        self.check(b'x' * 200000, None, 431, 400)
        self.check(get + b'Range: bytes=' + b','.join([b'0-0'] * 2000) + b'\r\n\r\n', 200, 400, 416)
        for ignored in (b'Range: bytes=0-1', b'Accept-Encoding: gzip, br'):
            self.assertTrue(self.check(get + ignored + b'\r\n\r\n', 200).endswith(b'\r\n\r\n{"status":"ok"}'))
        answer = self.server.exchange(get + b'Expect: 100-continue\r\n\r\n')
        self.assertEqual(status_of(answer.removeprefix(b'HTTP/1.1 100 Continue\r\n\r\n')), 200)
        self.check(get + b'\r\n' + get + b'\r\n', 200)

    def test_lengths(self):
        body = json.dumps(HELLO).encode()
        head = b'POST /v1/completions HTTP/1.1\r\nConnection: close\r\nContent-Type: application/json\r\n'
        self.check(head + b'\r\n' + body, 411)
        for length in (b'-1', b'abc', b'', b'1 2', b'0x10', b'+5', b'5\r\nContent-Length: 6', b'1.5'):
            with self.subTest(length):
                self.check(head + b'Content-Length: ' + length + b'\r\n\r\n' + body, 400, 411)
        for length in (b'102401', b'9223372036854775808', b'18446744073709551615'):
            with self.subTest(length):
                self.check(head + b'Content-Length: ' + length + b'\r\n\r\n' + body, 413)
        for length in (b'18446744073709551616', b'9' * 100):  # no number of 64 bits
            with self.subTest(length):
                self.check(head + b'Content-Length: ' + length + b'\r\n\r\n' + body, 400, 413)
        self.check(post(body, length=len(body) + 10), 400, 408, end=True)
        self.check(post(body, length=len(body) - 10), 400)
        self.check(head + b'Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n', 400)
        self.check(head + b'Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n', 501)
        # All of it is sent before the answer is read.
        self.check(post(b' ' * (100 << 10) + body), 413)
        status, _ = self.server.post(COMPLETIONS, b' ' * (4 << 20) + body)
        self.assertEqual(status, 413)

    def test_a_client_that_sends_on_gets_its_answer(self):
        with self.server.connect() as connection:
            connection.sendall(post(b'x' * 1000, length=4 << 20))
            for _ in range(3):
                time.sleep(0.1)
                connection.sendall(b'x' * 1000)
            self.assertEqual(status_of(connection.recv(1000)), 413)

    def test_chunks(self):
        body = json.dumps(HELLO).encode()
        head = b'POST /v1/completions HTTP/1.1\r\nConnection: close\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n'
        good = b''.join(b'%x\r\n%s\r\n' % (len(part), part) for part in (body[:1], body[1:7], body[7:])) + b'0\r\n\r\n'
        self.check(head + good, 200)
        for bad in (b'zz\r\n' + body, b'ffffffffffffffff\r\n' + body, b'ffffffffffffffffff\r\n' + body, b'-1\r\n' + body, b'\r\n\r\n', b'5\r\nabcdefgh\r\n',
                    b'5' * 70000, b'0\r\nx: y\r\n', good[:-10]):
            with self.subTest(bad[:30]):
                self.check(head + bad, 400, 408, 413, end=True)
        self.check(head + b'1000\r\n' + (b'x' * 0x1000 + b'\r\n1000\r\n') * 100, 413)
        self.check(head + b'fffffff\r\n' + b'x' * 2000000, 413)

    def test_slow_clients(self):
        body = json.dumps(HELLO).encode()

        def a_byte_now_and_then():
            with self.server.connect() as connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                end = time.monotonic() + PATIENCE
                while time.monotonic() < end:
                    connection.sendall(b'x')
                    time.sleep(0.1)
                self.fail('a connection without a request stays open while bytes arrive')

        with concurrent.futures.ThreadPoolExecutor(5) as pool:  # nearly all of their time is waiting
            silent = [pool.submit(self.check, *client) for client in (
                (b'', None), (b'GET /hea', None, 408), (b'GET /health HTTP/1.1\r\nx: ', 408), (post(body[:-5], length=len(body)), 408))]
            writing = pool.submit(a_byte_now_and_then)
        for client in silent:
            client.result()
        writing.result()

    def test_random_changes(self):
        random.seed(1)
        valid = [post(json.dumps(HELLO).encode()), post(json.dumps({**HELLO_CHAT, 'stream': True}).encode(), CHAT), b'GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n']
        for _ in range(300):
            data = bytearray(random.choice(valid))
            for _ in range(random.randint(1, 4)):
                at = random.randrange(len(data))
                change = random.randrange(4)
                if change == 0:
                    data[at] = random.randrange(256)
                elif change == 1:
                    del data[at:at + random.randint(1, 10)]
                elif change == 2:
                    data[at:at] = random.randbytes(random.randint(1, 10))
                else:
                    data[at:at] = data[random.randrange(len(data)):][:50]
                if not data:
                    break
            response = self.server.exchange(bytes(data), end=random.random() < 0.9)
            if response:
                self.assertIsNotNone(status_of(response), response[:100])

    def test_many_idle_connections(self):
        idle = [self.server.connect() for _ in range(200)]
        self.assert_alive()
        self.assertEqual(self.server.post(COMPLETIONS, HELLO)[0], 200)
        for connection in idle:
            connection.close()


class Connections(ServerTest):
    """Many connections, slow ones, and what a connection may say about itself."""
    context = LONG_CONTEXT
    arguments = ('--read-timeout', str(4 * PATIENCE))  # an answer that waits for the silent ones comes too late
    # More by PROLOGUE_SERVE_CONNECTIONS, for a machine that lets this process open as many files.
    NUM_IDLE = min(int(os.environ.get('PROLOGUE_SERVE_CONNECTIONS', 3000)), resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 200)

    def test_idle_and_half_sent_ones(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        parts = (b'', b'GET /hea', post(b'{', length=100000))
        with contextlib.ExitStack() as open_ones:
            for i in range(self.NUM_IDLE):
                connection = open_ones.enter_context(self.server.connect())
                connection.sendall(parts[i % len(parts)])
                if i % 1000 == 0:
                    self.assert_alive()
            self.assert_alive()
            self.assertEqual(self.server.post(COMPLETIONS, HELLO)[0], 200)
            self.assertLess(self.server.num_threads(), 20)
            self.assert_alive()

    def test_clients_that_do_not_read(self):
        data = post(json.dumps({**ENDLESS, 'stream': True}).encode())
        with contextlib.ExitStack() as open_ones:
            for _ in range(100):
                connection = open_ones.enter_context(socket.socket())
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.connect((self.server.host, self.server.port))
                connection.sendall(data)
            for _ in range(5):
                self.assert_alive()
                time.sleep(0.1)
        self.wait_for('the end of all', lambda: self.server.metrics()['prologue_running'] == self.server.metrics()['prologue_waiting'] == 0)

    def test_several_requests_of_a_connection(self):
        connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=PATIENCE)
        self.addCleanup(connection.close)
        headers = {'Content-Type': 'application/json'}
        texts, streams = set(), set()
        local = set()
        for length in (3000, 0, 100000, 1):
            body = json.dumps(HELLO) + ' ' * length
            connection.request('POST', COMPLETIONS, body, headers)
            local.add(connection.sock.getsockname())
            response = connection.getresponse()
            texts.add(json.loads(response.read())['choices'][0]['text'])
            connection.request('POST', COMPLETIONS, json.dumps({**HELLO, 'stream': True}) + ' ' * length, headers)
            stream = connection.getresponse().read()
            self.assertTrue(stream.endswith(b'data: [DONE]\n\n'), stream)
            connection.request('HEAD', '/health')
            self.assertEqual(connection.getresponse().read(), b'')
        self.assertEqual((len(texts), len(local)), (1, 1))
        # Two at once: the answers come one after another.
        get = b'GET /health HTTP/1.1\r\n'
        answer = self.server.exchange(get + b'\r\n' + get + b'Connection: close\r\n\r\n')
        self.assertEqual(answer.count(b'HTTP/1.1 200'), 2)
        # What was not read of a refused request is not taken for the next one.
        answer = self.server.exchange(b'POST /nowhere HTTP/1.1\r\nContent-Length: 30\r\n\r\n' + get + b'\r\n')
        self.assertEqual(answer.count(b'HTTP/1.1'), 1)

    def test_http_1_0(self):
        body = json.dumps({**HELLO, 'stream': True}).encode()
        answer = self.server.exchange(post(body).replace(b'HTTP/1.1', b'HTTP/1.0'))
        head, _, content = answer.partition(b'\r\n\r\n')
        self.assertEqual(status_of(answer), 200)
        self.assertNotIn(b'chunked', head)
        self.assertTrue(content.startswith(b'data: {'), content[:50])
        self.assertTrue(content.endswith(b'data: [DONE]\n\n'), content[-50:])

    def test_absolute_targets(self):
        for target, status in ((b'http://localhost:1/health', 200), (b'HTTP://127.0.0.1/health?x', 200), (b'http://localhost', 200),
                               (b'http://localhost/nowhere', 404), (b'ftp://localhost/health', 404), (b'http://evil.example/health', 403)):
            with self.subTest(target):
                answer = self.server.exchange(b'GET ' + target + b' HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n')
                self.assertEqual(status_of(answer), status, answer)

    def test_identity_is_no_encoding(self):
        self.assertEqual(self.server.request('POST', COMPLETIONS, HELLO, {'Content-Encoding': 'identity'})[0], 200)

    def test_zero_bytes_and_escapes(self):
        self.assertEqual(self.server.request('GET', '/v1/models/tiny%2d65536')[0], 200)
        for path, status in (('/v1/models/tiny-65536%00', 404), ('/health%00', 404), ('/%', 400), ('/%4', 400), ('/%zz', 400)):
            self.assertEqual(self.server.request('GET', path)[0], status, path)

    def test_hosts_and_origins(self):
        good = ('localhost', 'LOCALHOST:80', 'app.localhost', 'localhost.', '127.0.0.1', '127.1.2.3:9', '[::1]', '[::1]:8080')
        bad = ('evil.example', 'localhost.evil.example', 'evil.example:8080', '127.0.0.1.evil.example', '10.0.0.1', '0.0.0.0', '[::2]',
               'localhost:x', 'localhost@evil.example', '[::1', 'xlocalhost')
        for name in good:
            self.assertEqual(self.server.request('GET', '/health', headers={'Host': name})[0], 200, name)
            self.assertEqual(self.server.request('POST', COMPLETIONS, HELLO, {'Origin': 'http://' + name})[0], 200, name)
        for name in bad:
            for path in ('/', '/health', '/metrics', '/v1/models', '/nowhere'):
                status, _, content = self.server.request('GET', path, headers={'Host': name})
                self.assert_error((status, content), 403, code='host_not_allowed')
            status, _, content = self.server.request('POST', COMPLETIONS, HELLO, {'Origin': 'https://' + name})
            self.assert_error((status, content), 403, code='host_not_allowed')
        self.assertEqual(self.server.request('POST', COMPLETIONS, HELLO, {'Origin': 'null'})[0], 403)
        self.assertEqual(status_of(self.server.exchange(b'GET /health HTTP/1.1\r\nHost: localhost\r\nHost: x\r\n\r\n')), 400)


class AllowedHosts(ServerTest):
    arguments = ('--allowed-hosts', 'Models.example,fd00::1')

    def test_they_pass(self):
        for name, status in (('models.example', 200), ('MODELS.example:443', 200), ('[fd00::1]:80', 200), ('localhost', 200),
                             ('other.example', 403), ('x.models.example', 403)):
            self.assertEqual(self.server.request('GET', '/health', headers={'Host': name})[0], status, name)
            self.assertEqual(self.server.request('GET', '/health', headers={'Origin': 'https://' + name})[0], status, name)


class Limits(ServerTest):
    context = LONG_CONTEXT
    arguments = ('--max-requests', '2', '--timeout', '20' if serve_support.is_sanitized() else '2')  # both must run at once

    def test_requests_and_time(self):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            whole = pool.submit(self.server.post, COMPLETIONS, ENDLESS)
            events = pool.submit(self.server.events, COMPLETIONS, ENDLESS)
            self.wait_for('the start of both', lambda: self.server.metrics()['prologue_running'] == 2)
            self.assert_error(self.server.post(COMPLETIONS, HELLO), 429, code='rate_limit_exceeded')
            self.assert_alive()
            error = self.assert_error(whole.result(), 408, code='timeout')
            self.assertEqual(error['type'], 'timeout_error')
            self.assertEqual(events.result()[-1]['error']['code'], 'timeout')
        self.wait_for('the cancellation', lambda: self.server.metrics()['prologue_finished_total{reason="cancelled"}'] == 2)
        self.assertEqual(self.server.post(COMPLETIONS, HELLO)[0], 200)


class Queue(ServerTest):
    context = LONG_CONTEXT
    parallel = 1
    arguments = ('--max-queue', '1')

    def test_a_full_queue_refuses(self):
        many = {**ENDLESS, 'prompt': ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h']}
        for body in (many, {**many, 'stream': True}):
            self.assert_error(self.server.post(COMPLETIONS, body), 429, code='rate_limit_exceeded')
        # Those that were not refused are cancelled with the others.
        self.assertGreaterEqual(self.server.metrics()['prologue_refused_total'], 2)
        self.wait_for('the cancellation', lambda: self.server.post(COMPLETIONS, HELLO)[0] == 200)
        self.wait_for('the end', lambda: self.server.metrics()['prologue_running'] == 0)


class Cancellation(ServerTest):
    context = LONG_CONTEXT
    CANCELLED = 'prologue_finished_total{reason="cancelled"}'

    def check_cancelled(self, before, num):
        self.wait_for('the cancellation', lambda: self.server.metrics()[self.CANCELLED] == before + num)
        tokens = self.server.metrics()['prologue_generated_tokens_total']
        time.sleep(0.2)
        self.assertEqual(self.server.metrics()['prologue_generated_tokens_total'], tokens)

    def test_a_stream_whose_client_goes_away(self):
        before = self.server.metrics()[self.CANCELLED]
        connection, response = self.server.open_stream(COMPLETIONS, {**ENDLESS, 'n': 2})
        for _ in range(6):
            self.assertTrue(response.readline())
        response.close()
        connection.close()
        self.check_cancelled(before, 2)

    def test_a_whole_answer_whose_client_goes_away(self):
        before = self.server.metrics()[self.CANCELLED]
        with self.server.connect() as connection:
            connection.sendall(post(json.dumps({**ENDLESS, 'prompt': ['a', 'b', 'c']}).encode()))
            self.wait_for('the start', lambda: self.server.metrics()['prologue_running'] == 3)
        self.check_cancelled(before, 3)

    def test_a_client_that_goes_away_while_it_waits(self):
        before = self.server.metrics()[self.CANCELLED]
        with self.server.connect() as first, self.server.connect() as second:
            first.sendall(post(json.dumps({**ENDLESS, 'n': 8}).encode()))
            self.wait_for('the start', lambda: self.server.metrics()['prologue_running'] == 8)
            second.sendall(post(json.dumps(ENDLESS).encode()))
            time.sleep(0.2)
            second.close()
            self.wait_for('the cancellation', lambda: self.server.metrics()[self.CANCELLED] == before + 1)
        self.check_cancelled(before, 9)


class ManyClients(ServerTest):
    context = LONG_CONTEXT
    arguments = ('--batch-invariant',)

    def test_at_once(self):
        """What each gets is what it gets alone, whatever the others do."""
        prompts = [f'prompt {i}' for i in range(8)]
        body = {**HELLO, 'max_tokens': 30}
        alone = [self.server.post(COMPLETIONS, {**body, 'prompt': prompt})[1]['choices'][0]['text'] for prompt in prompts]

        def client(i):
            prompt = prompts[i % len(prompts)]
            if i % 3 == 0:
                return self.server.post(COMPLETIONS, {**body, 'prompt': prompt})[1]['choices'][0]['text']
            if i % 3 == 1:
                events = self.server.events(COMPLETIONS, {**body, 'prompt': prompt})
                return ''.join(event['choices'][0]['text'] for event in events[:-1])
            connection, response = self.server.open_stream(COMPLETIONS, ENDLESS)
            response.readline()
            response.close()
            connection.close()
            return None

        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            for i, text in enumerate(pool.map(client, range(96))):
                if text is not None:
                    self.assertEqual(text, alone[i % len(prompts)])
        self.wait_for('the end of all', lambda: self.server.metrics()['prologue_running'] == self.server.metrics()['prologue_waiting'] == 0)


class TheEnd(unittest.TestCase):
    wait_for = ServerTest.wait_for

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.model = serve_support.make_tiny_model(self.folder.name, LONG_CONTEXT)

    def start(self, *arguments, **process):
        server = Server(self.model, '--kv-memory', '64M', *arguments, **process)
        self.addCleanup(lambda: server.process.poll() is None and (server.process.kill(), server.process.wait()))
        return server

    def test_idle(self):
        for how in (signal.SIGINT, signal.SIGTERM):
            server = self.start()
            idle = server.connect()
            code = server.stop(how)
            idle.close()
            self.assertEqual(code, 0, server.stderr())

    def test_a_terminal_that_closes(self):
        server = self.start()
        server.process.send_signal(signal.SIGHUP)
        code = server.stop(signal.SIGHUP)
        self.assertEqual(code, 0, server.stderr())
        server = self.start(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))  # nohup
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        self.assertEqual(server.request('GET', '/health')[0], 200)
        self.assertEqual(server.stop(), 0)

    def test_small_stacks(self):
        """One GET with a long Range ended the process where a thread had 3 MB."""
        size = 512 << 10
        server = self.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (size, size)))
        for length in (2000, 4000, 16000, 60000):
            request = b'GET /health HTTP/1.1\r\nConnection: close\r\nRange: bytes=' + b'0-0,' * length + b'0-0\r\n\r\n'
            self.assertIn(status_of(server.exchange(request)), (200, 431))
        self.assertEqual(server.post(COMPLETIONS, HELLO)[0], 200)
        self.assertEqual(server.stop(), 0)

    def test_few_files(self):
        """Who waits longest for its request makes room for the next connection."""
        server = self.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200)))
        with contextlib.ExitStack() as open_ones:
            for _ in range(400):
                open_ones.enter_context(server.connect())
            self.assertEqual(server.request('GET', '/health')[0], 200)
            # As if others had taken all files of the process: what accept() says is EMFILE.
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (20, 200))
            late = open_ones.enter_context(server.connect())
            time.sleep(0.2)
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (200, 200))
            late.sendall(b'GET /health HTTP/1.1\r\nConnection: close\r\n\r\n')
            self.assertEqual(status_of(late.recv(1000)), 200)
        self.assertEqual(server.stop(), 0)

    @unittest.skipUnless('PROLOGUE_ACCEPT_ERRORS' in os.environ, 'a sanitizer does not let another library in front')
    def test_errors_of_accept(self):
        errors = [errno.ECONNABORTED, errno.ENFILE, errno.EMFILE, errno.ENOBUFS, errno.ENOMEM, errno.EPROTO, errno.EPERM]
        environment = {**os.environ, 'LD_PRELOAD': os.environ['PROLOGUE_ACCEPT_ERRORS'], 'ACCEPT_ERRORS': ' '.join(map(str, errors))}
        server = self.start(env=environment)
        for _ in range(4):
            self.assertEqual(server.request('GET', '/health')[0], 200)
        self.assertEqual(server.stop(), 0)

    def test_at_work(self):
        server = self.start()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            whole = pool.submit(server.post, COMPLETIONS, ENDLESS)
            events = pool.submit(server.events, COMPLETIONS, ENDLESS)
            self.wait_for('the start of both', lambda: server.metrics()['prologue_running'] == 2)
            half = server.connect()
            self.addCleanup(half.close)
            half.sendall(b'POST /v1/completions HTTP/1.1\r\n')
            code = server.stop()
            self.assertEqual(code, 0, server.stderr())
            status, content = whole.result()
            self.assertEqual((status, content['error']['code']), (503, 'shutting_down'))
            self.assertEqual(events.result()[-1]['error']['code'], 'shutting_down')

    def test_while_prompts_are_scored(self):
        scoring = {'prompt': [[7] * 4000] * 40, 'echo': True, 'logprobs': 0, 'max_tokens': 0}
        server = self.start('--timeout', '1')
        self.assertEqual(server.post(COMPLETIONS, scoring)[1]['error']['code'], 'timeout')
        self.assertEqual(server.post(COMPLETIONS, HELLO)[0], 200)
        self.assertEqual(server.stop(), 0)
        server = self.start()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(server.post, COMPLETIONS, scoring)
            time.sleep(5 if serve_support.is_sanitized() else 0.5)  # no metric says that it has begun
            code = server.stop()
            self.assertEqual(code, 0, server.stderr())
            self.assertEqual(answer.result()[1]['error']['code'], 'shutting_down')

    def test_what_cannot_start(self):
        server = self.start()
        serve = serve_support.program('serve')

        def run(*arguments):
            done = subprocess.run([serve, *arguments], capture_output=True, text=True, timeout=PATIENCE)
            return done.returncode, done.stderr
        code, error = run('--model', self.model, '--device', 'cpu', '--kv-memory', '64M', '--port', str(server.port))
        self.assertEqual(code, 1)
        self.assertIn(f'port {server.port}', error)
        self.assertEqual(run('--model', '/nowhere.gguf')[0], 1)
        for wrong in (['--port', '70000'], ['--port', 'x'], ['--max-body', '1X'], ['--max-body', '0'], ['--max-body', '1048576T'], ['--max-body', '2G'], ['--kv-memory', '9999999999G'],
                      ['--timeout', '0'], ['--api-key', ''], ['--api-key', ' x'], ['--api-key', 'a\nb'], ['--host', ''], ['--model-name', ''],
                      ['--allowed-hosts', ''], ['--allowed-hosts', 'http://x'], ['--allowed-hosts', 'x:80'], ['--no-such-flag'], ['--kv-cache-dtype', 'x']):
            code, error = run('--model', self.model, *wrong)
            self.assertEqual(code, 2, wrong)
            self.assertTrue(error.startswith('serve: '), error)
        done = subprocess.run([serve, '--model', self.model], capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, 'PROLOGUE_API_KEY': ''})
        self.assertEqual(done.returncode, 2)
        self.assertIn('PROLOGUE_API_KEY is empty', done.stderr)
        self.assertEqual(run('--help')[0], 0)
        self.assertEqual(server.stop(), 0)


class OneConnection(ServerTest):
    def test_bodies_of_any_length_one_after_another(self):
        connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=PATIENCE)
        self.addCleanup(connection.close)
        for length in (10, 200, 20, 9000, 4096, 5000, 1):
            connection.request('POST', COMPLETIONS, json.dumps({**HELLO, 'user': 'x' * length}), {'Content-Type': 'application/json'})
            response = connection.getresponse()
            self.assertEqual((response.status, json.loads(response.read())['usage']['completion_tokens']), (200, 4))


class RequestLog(unittest.TestCase):
    """Lines on stderr, without texts."""

    wait_for = ServerTest.wait_for
    LINE = r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ '

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = serve_support.make_tiny_model(folder.name)

    def requests(self, server):
        secret = 'my secret text'
        server.post(COMPLETIONS, {**HELLO, 'prompt': secret})
        server.events(COMPLETIONS, {**HELLO, 'prompt': secret})
        server.request('GET', '/health')
        server.request('GET', '/v1/models?' + secret.replace(' ', '+'))
        server.request('GET', '/' + secret.replace(' ', '/'))
        server.post(COMPLETIONS, {'prompt': secret, 'max_tokens': secret})

    def test_a_line_for_each_request(self):
        server = Server(self.model)
        self.requests(server)
        self.assertRegex(server.started, r' on cpu, float32, weights as float32, [0-9.]+ MB, at http.*\(Ctrl-C stops it\)')
        code = server.stop(signal.SIGINT)
        self.assertEqual(code, 0)
        text = server.stderr()
        self.assertTrue(text.startswith('serve: loading '), text)
        self.assertNotIn('secret', text)
        lines = [line for line in text.splitlines() if re.match(self.LINE, line)]
        for line, end in zip(lines, (r'POST /v1/completions 200 \d+ \+ 4 tokens, \d+ ms', r'POST /v1/completions 200 \d+ \+ 4 tokens, \d+ ms',
                                     r'GET /v1/models 200 \d+ ms', r'GET other 404 \d+ ms', r'POST /v1/completions 400 \d+ ms')):
            self.assertRegex(line, '^' + self.LINE + end + '$')
        self.assertEqual(len(lines), 5, text)

    def test_quiet(self):
        server = Server(self.model, '--quiet')
        self.requests(server)
        server.stop()
        self.assertEqual(server.stderr(), 'serve: shutting down\n')

    def test_nobody_reads_it(self):
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        with open(reader, 'rb', buffering=0) as read, open(writer, 'wb', buffering=0) as errors:
            server = Server(self.model, errors=errors)
            for _ in range(150):
                self.assertEqual(server.request('GET', '/v1/models')[0], 200)  # the server does not wait for the log's reader
            self.assertTrue(read.read(65536).startswith(b'serve: loading '))
            server.request('GET', '/v1/models')
            server.request('GET', '/v1/models')
            self.wait_for('the log', lambda: select.select([read], [], [], 0)[0])
            self.assertRegex(read.read(65536), rb'^\(\d+ requests are not in this log\)\n')
            server.process.kill()
            server.process.wait()
            server.process.stdout.close()


if __name__ == '__main__':
    unittest.main()
