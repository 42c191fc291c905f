#!/usr/bin/env python3
"""Makes the goldens of tests/golden/tokenizer/hf, of pre-tokenizers by name and of SentencePiece's BPE: see the README.md of tests/golden/tokenizer.

needs (PyPI): tokenizers, sentencepiece, jinja2
usage: make_tokenizer_goldens.py [--gemma gemma-3-270m.Q4_K_M.gguf --llama-rows ROWS.json] [--retrain]

Every tokenizer.json has the normalizer, pre-tokenizer, decoder and post-processor of a real family, and a small vocabulary that is trained
here on the sentences of make_goldens.py. Without --retrain the committed files are read back, and only what is expected of them is made anew.
"""
import argparse, io, json, os, re, struct, sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GOLDEN = os.path.join(ROOT, "tests/golden/tokenizer")
HF = os.path.join(GOLDEN, "hf")
sys.path.insert(0, GOLDEN)
import jinja2
import jinja2.sandbox
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers as pre, trainers
from chat_templates import CHATS
from make_goldens import SENTENCES

SPACE = "\u2581"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES)

# ---- The parts, as the models' tokenizer.json files have them ----

def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}

def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}

def sequence(name, *parts):
    return {"type": "Sequence", name: list(parts)}

def metaspace(scheme, cut=None):
    part = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme}
    return part if cut is None else {**part, "split": cut}

def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}

def template(before, after, ids):
    single = [{"SpecialToken": {"id": t, "type_id": 0}} for t in before] + [{"Sequence": {"id": "A", "type_id": 0}}]
    single += [{"SpecialToken": {"id": t, "type_id": 0}} for t in after]
    return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in before + after}}

SPM_SPACES = sequence("normalizers", {"type": "Prepend", "prepend": SPACE}, replace(" ", SPACE))
SPM_DECODER = [replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
BYTES = byte_level()

# name: model, special tokens, other added tokens (content, flags), and the parts. `flags` are those of BPE.
FAMILIES = {
    "gpt2": dict(model="bytes", special=["<|endoftext|>"], pre_tokenizer=byte_level(), decoder=BYTES, post_processor=byte_level()),
    "llama3": dict(model="bytes", special=["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
                   flags={"ignore_merges": True}, pre_tokenizer=sequence("pretokenizers", split(LLAMA3), byte_level(regex=False)), decoder=BYTES,
                   post_processor=lambda ids: sequence("processors", byte_level(), template(["<|begin_of_text|>"], [], ids))),
    "qwen2": dict(model="bytes", special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], added=[("<tool_call>", {}), ("</tool_call>", {})],
                  normalizer={"type": "NFC"}, pre_tokenizer=sequence("pretokenizers", split(QWEN2), byte_level(regex=False)), decoder=BYTES,
                  post_processor=byte_level(regex=False)),
    "neox": dict(model="bytes", special=["<|endoftext|>", "<|padding|>"],
                 added=[(" " * n, {"normalized": True}) for n in (24, 8, 4, 3, 2)] + [("|||IP_ADDRESS|||", {"normalized": True})],
                 normalizer={"type": "NFC"}, pre_tokenizer=byte_level(), decoder=BYTES, post_processor=byte_level()),
    "gpt_oss": dict(model="bytes", special=["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>"],
                    flags={"ignore_merges": True}, pre_tokenizer=sequence("pretokenizers", split(O200K), byte_level(regex=False)), decoder=BYTES,
                    post_processor=byte_level(regex=False)),
    "prefix_space": dict(model="bytes", special=["<s>", "</s>"], added=[("<mask>", {"lstrip": True}), ("word", {"single_word": True})],
                         pre_tokenizer=byte_level(prefix=True), decoder=BYTES, post_processor=byte_level()),
    "cohere": dict(model="bytes", special=["<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"], normalizer={"type": "NFC"},
                   pre_tokenizer=sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level()), decoder=BYTES,
                   post_processor=lambda ids: template(["<BOS_TOKEN>"], [], ids)),
    "gemma": dict(model="characters", special=["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"],
                  added=[("\n", {}), ("\n\n", {}), (SPACE * 2, {}), (SPACE * 3, {}), ("\t", {}), ("<h1>", {})],
                  flags={"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}, normalizer=replace(" ", SPACE),
                  pre_tokenizer=split(" ", "MergedWithPrevious", kind="String"), decoder=sequence("decoders", *SPM_DECODER),
                  post_processor=lambda ids: template(["<bos>"], [], ids)),
    "llama2_legacy": dict(model="characters", special=["<unk>", "<s>", "</s>"], flags={"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"},
                          normalizer=SPM_SPACES, pre_tokenizer=None, decoder=sequence("decoders", *SPM_DECODER, STRIP),
                          post_processor=lambda ids: template(["<s>"], [], ids)),
    "llama2": dict(model="characters", special=["<unk>", "<s>", "</s>"], flags={"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"},
                   normalizer=None, pre_tokenizer=metaspace("first", False), decoder=sequence("decoders", *SPM_DECODER, STRIP),
                   post_processor=lambda ids: template(["<s>"], [], ids)),
    "phi3": dict(model="characters", special=["<unk>", "<s>", "<|endoftext|>"],
                 added_special=[(t, {"rstrip": True}) for t in ("<|assistant|>", "<|system|>", "<|end|>", "<|user|>")],
                 added=[("</s>", {"rstrip": True})], flags={"byte_fallback": True, "unk_token": "<unk>"},
                 normalizer=SPM_SPACES, pre_tokenizer=None, decoder=sequence("decoders", *SPM_DECODER, STRIP),
                 post_processor=lambda ids: template(["<s>"], [], ids)),
    "t5": dict(model="unigram", special=["<pad>", "</s>", "<unk>"], added_special=[("<extra_id_0>", {"lstrip": True, "rstrip": True})],
               normalizer=sequence("normalizers", {"type": "NFKC"}, {"type": "Strip", "strip_left": False, "strip_right": True},
                                   replace(" {2,}", SPACE, "Regex")),
               pre_tokenizer=metaspace("always", True), decoder=metaspace("always", True), post_processor=lambda ids: template([], ["</s>"], ids)),
    "unigram_bytes": dict(model="unigram", special=["<unk>", "<s>", "</s>"], flags={"byte_fallback": True}, normalizer=replace(" ", SPACE),
                          pre_tokenizer=None, decoder=sequence("decoders", *SPM_DECODER), post_processor=None),
    "characters": dict(model="characters", special=["[UNK]"], added=[("Ko\u0308ln", {"normalized": True}), ("ing", {"single_word": True, "normalized": True})],
                       flags={"fuse_unk": True, "unk_token": "[UNK]"}, normalizer=sequence("normalizers", {"type": "NFKD"}, replace("\u0301", "")),
                       pre_tokenizer=sequence("pretokenizers", {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "MergedWithNext"},
                                              {"type": "Digits", "individual_digits": False}, split("e", "MergedWithNext", kind="String"),
                                              split("n|t", "Contiguous"), split(r"\p{Lu}+", "MergedWithPrevious", invert=True)),
                       decoder=sequence("decoders", {"type": "Fuse"}), post_processor=None),
    "words": dict(model="characters", special=["[UNK]"], flags={"fuse_unk": False, "unk_token": "[UNK]"}, normalizer={"type": "NFD"},
                  pre_tokenizer={"type": "Whitespace"}, decoder=sequence("decoders", {"type": "Fuse"}), post_processor=None),
}

# ---- Vocabularies ----

def trained(family):
    """[tokens in the order of their ids, merges] or [[token, score], ...]."""
    kind = family["model"]
    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre.Metaspace()
        alphabet = sorted(set("".join(SENTENCES[:8])))
        tokenizer.train_from_iterator([re.sub("[^%s]" % re.escape("".join(alphabet)), " ", s) for s in SENTENCES * 3],
                                      trainers.UnigramTrainer(vocab_size=380, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False))
        return [v for v in json.loads(tokenizer.to_str())["model"]["vocab"] if v[0] != "<unk>"], None
    tokenizer = Tokenizer(models.BPE())
    if kind == "bytes":
        parts = family["pre_tokenizer"]
        whole = Tokenizer.from_str(json.dumps(document({**family, "flags": {}}, {}, [], [], None)))
        tokenizer.pre_tokenizer = whole.pre_tokenizer
        trainer = trainers.BpeTrainer(vocab_size=256 + 260, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False)
        texts = SENTENCES
    else:
        tokenizer.pre_tokenizer = pre.Metaspace(split=True)
        trainer = trainers.BpeTrainer(vocab_size=430, limit_alphabet=170, show_progress=False)
        texts = SENTENCES
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = model["merges"]
    return sorted(model["vocab"], key=model["vocab"].get), [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in merges]

def document(family, ids, vocabulary, merges, added):
    flags = family.get("flags", {})
    if family["model"] == "unigram":
        model = {"type": "Unigram", "unk_id": ids.get("<unk>"), "vocab": vocabulary, "byte_fallback": flags.get("byte_fallback", False)}
    else:
        model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                 "byte_fallback": False, "ignore_merges": False, **flags, "vocab": ids,
                 "merges": [list(m) for m in merges] if family.get("pairs", True) else [" ".join(m) for m in merges]}
    post = family.get("post_processor")
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added or [], "normalizer": family.get("normalizer"),
            "pre_tokenizer": family["pre_tokenizer"], "post_processor": post(ids) if callable(post) and ids else None if callable(post) else post,
            "decoder": family["decoder"], "model": model}

def make(name, family):
    vocabulary, merges = trained(family)
    special = [(t, {}) for t in family["special"]] + family.get("added_special", [])
    plain = family.get("added", [])
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)] if family.get("flags", {}).get("byte_fallback") else []
    if family["model"] == "unigram":
        entries = [[t, 0.0] for t, _ in special] + [[t, 0.0] for t in byte_tokens] + vocabulary
        ids = {t: i for i, (t, _) in enumerate(entries)}
        vocabulary = entries
    else:
        # Byte-level families number their markers after the vocabulary, the others before it.
        front = [] if family["model"] == "bytes" else [t for t, _ in special] + byte_tokens
        tokens = list(dict.fromkeys(front + vocabulary))
        if name == "gemma":
            tokens += [t for t, _ in plain if t not in tokens]
        ids = {t: i for i, t in enumerate(tokens)}
    numbers = dict(ids)
    added = []
    for content, extra in special + plain:
        numbers.setdefault(content, len(numbers) if content not in numbers else 0)
        added.append({"id": numbers[content], "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                      "special": (content, extra) in special, **extra})
    family = {**family, "pairs": name not in ("gpt2", "llama2_legacy")}
    post = family.get("post_processor")
    text = document({**family, "post_processor": post(numbers) if callable(post) else post}, ids, vocabulary, merges or [],
                    sorted(added, key=lambda a: a["id"]))
    return json.dumps(text, ensure_ascii=False, separators=(",", ":"))

# ---- What is expected ----

def expected(tokenizer, strings, is_unigram):
    names = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    own = [f"a {n} b{n}c\n{n} {n}  d" for n in names[:6]] + ["".join(names[:3]), f"  {names[0]}"]
    rows = []
    for index, text in list(enumerate(strings)) + [(None, t) for t in own]:
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        row = {"text": index if index is not None else text, "plain": plain}
        decoded = tokenizer.decode(plain, skip_special_tokens=True)
        if decoded != text:
            row["decoded"] = decoded
        tokenizer.encode_special_tokens = False
        parsed = tokenizer.encode(text, add_special_tokens=False).ids
        if parsed != plain:
            row["parsed"] = parsed
        if is_unigram and index is None:  # `tokenizers` makes its markers from plain text, we never do
            row = {"text": text, "parsed": parsed}
        rows.append(row)
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    return {"with_bos_and_eos_of_a": whole, "rows": rows}

# ---- Pre-tokenizers by their names in GGUF ----

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES)
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
CODER_CJK = "[一-龥ࠀ-一가-\ud7ff]+"
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + SPACES)
DIGITS = {"type": "Digits", "individual_digits": True}

# One name of each kind, with the steps of the tokenizer.json of a model that has it. "default" is llama.cpp's own. All end with ByteLevel.
NAMED = {
    "default": [split(r"[\p{P}\$\+<=>\^~\|]+"), split(GPT2), split(r"\p{N}+"), split("[0-9][0-9][0-9]")],
    "gpt-2": [byte_level()],
    "smollm": [DIGITS, byte_level()],
    "llama-bpe": [split(LLAMA3)],
    "smaug-bpe": [split(LLAMA3)],
    "minicpm5": [split(r"\p{N}{1,3}"), split(LLAMA3.replace("{1,3}", "+"))],
    "qwen2": [split(QWEN2)],
    "qwen35": [split(CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + SPACES)],
    "seed-coder": [split(CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + SPACES)],
    "bailingmoe": [split(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")],
    "gpt-4o": [split(O200K)],
    "tiny_aya": [split(r"\d{1,3}(?=(?:\d{3})*\b)"), split(O200K)],
    "tekken": [split(TEKKEN)],
    "bloom": [split(BLOOM)],
    "viking": [split(BLOOM), DIGITS],
    "deepseek-coder": [split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(CODER_CJK), DIGITS],
    "deepseek-v3": [split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK3)],
    "falcon": [{"type": "Punctuation", "behavior": "Contiguous"}, byte_level(), {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]")],
}

def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"

def pre_tokenizer_goldens(strings):
    """By name: how many pieces the texts are split into, and the hash of their lengths in bytes (32-bit little-endian; 0 ends a text)."""
    goldens = {}
    for name, steps in NAMED.items():
        # A step after ByteLevel would see its letters: its own pattern is a step, and the bytes become letters at the end.
        steps = [split(GPT2) if s["type"] == "ByteLevel" else s for s in steps] + [byte_level(regex=False)]
        tokenizer = Tokenizer.from_str(json.dumps(document({"model": "bytes", "pre_tokenizer": sequence("pretokenizers", *steps), "decoder": BYTES},
                                                           {}, [], [], None)))
        count, lengths = 0, b""
        for text in strings:
            pieces = [len(piece) for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
            count += len(pieces)
            lengths += b"".join(struct.pack("<I", n) for n in pieces + [0])
        goldens[name] = {"pieces": count, "digest": fnv1a(lengths)}
    json.dump(goldens, open(os.path.join(GOLDEN, "pre_tokenizers.json"), "w"), indent=1)

# ---- Chats ----

CONVERSATIONS = [  # (has a system message, has several turns, messages)
    (False, False, [("user", "What is 2 + 2?")]),
    (False, False, [("user", "  Größe?\n\n"), ("assistant", "42 m².\n")]),
    (False, True, [("user", "Hi"), ("assistant", "Hello! How are you?"), ("user", " Tell me\na joke 🙂.")]),
    (True, False, [("system", "  You are brief.\n"), ("user", " Hi\n")]),
    (True, True, [("system", "You are a helpful assistant.\nBe brief."), ("user", "One"), ("assistant", " Two "), ("user", "Three"),
                  ("assistant", "Four"), ("user", "Five")]),
]

def chat_goldens():
    # As transformers renders templates.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    def fail(message):
        raise jinja2.exceptions.TemplateError(message)
    environment.globals["raise_exception"] = fail
    chats = []
    for name, format_name, family, markers, bos, eos, template, has_system, has_long_system in CHATS:
        tokenizer = Tokenizer.from_file(os.path.join(HF, family + ".tokenizer.json"))
        tokenizer.add_special_tokens([AddedToken(m, normalized=False) for m in markers])
        rows = []
        for system, long, messages in CONVERSATIONS:
            if system and not (has_long_system if long else has_system):
                continue
            if messages[-1][0] == "assistant" and name in ("phi3", "phi4_mini"):
                continue  # without an answer to come, these templates write EOS after the conversation
            prompt = messages[-1][0] == "user"
            text = environment.from_string(template).render(messages=[{"role": r, "content": c} for r, c in messages], add_generation_prompt=prompt,
                                                            bos_token=bos or "", eos_token=eos)
            rows.append({"messages": messages, "generation_prompt": prompt, "text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids})
        chats.append({"name": name, "format": format_name, "family": family, "markers": markers, "bos": bos, "eos": eos, "template": template, "chats": rows})
    json.dump(chats, open(os.path.join(HF, "chats.json"), "w"), ensure_ascii=False, separators=(",", ":"))

# ---- SentencePiece ----

def wire(field, kind, data):
    def varint(n):
        out = b""
        while True:
            n, low = n >> 7, n & 127
            if not n:
                return out + bytes([low])
            out += bytes([low | 128])
    if kind == "bytes":
        return varint(field << 3 | 2) + varint(len(data)) + data
    return varint(field << 3 | 5) + struct.pack("<f", data) if kind == "float" else varint(field << 3) + varint(data)

def sentencepiece_model(tokens, scores, types, unknown, add_dummy_prefix):
    """A model proto from a GGUF file's vocabulary."""
    out = b""
    for i, (token, score, kind) in enumerate(zip(tokens, scores, types)):
        kind = 2 if i == unknown else kind
        text = token.replace(" ", SPACE) if kind == 4 else token
        out += wire(1, "bytes", wire(1, "bytes", text.encode()) + wire(2, "float", score) + wire(3, "int", kind))
    out += wire(2, "bytes", wire(3, "int", 2) + wire(4, "int", len(tokens)) + wire(35, "int", 1) + wire(40, "int", unknown) +
                wire(45, "bytes", tokens[unknown].encode()))
    return out + wire(3, "bytes", wire(1, "bytes", b"identity") + wire(3, "int", int(add_dummy_prefix)) + wire(4, "int", 0) + wire(5, "int", 1))

def parse_model(proto):
    """[(token, score, type)]: the pieces of a trained model."""
    def fields(data):
        at = 0
        def varint():
            nonlocal at
            n = shift = 0
            while True:
                byte = data[at]; at += 1
                n |= (byte & 127) << shift; shift += 7
                if byte < 128:
                    return n
        while at < len(data):
            tag = varint()
            if tag & 7 == 0: yield tag >> 3, varint()
            elif tag & 7 == 2:
                size = varint(); yield tag >> 3, data[at:at + size]; at += size
            else:
                size = 8 if tag & 7 == 1 else 4
                yield tag >> 3, data[at:at + size]; at += size
    pieces = []
    for field, data in fields(proto):
        if field == 1:
            piece = dict(fields(data))
            pieces.append((piece[1].decode(), struct.unpack("<f", piece[2])[0], piece.get(3, 1)))
    return pieces

def spm_goldens(strings, retrain):
    path = os.path.join(GOLDEN, "spm.json")
    if retrain or not os.path.exists(path):
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([s.replace("\n", " ").replace("\r", " ").replace("\t", " ") for s in SENTENCES * 4]), model_writer=out,
            model_type="bpe", vocab_size=900, byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity",
            remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, split_digits=True, num_threads=1, minloglevel=2,
            user_defined_symbols=["<tool>", "\n", "\n\n", SPACE * 2, SPACE * 3])
        pieces = parse_model(out.getvalue())
        data = {"tokens": [p.replace(SPACE, " ") if t == 4 else p for p, _, t in pieces], "scores": [s for _, s, _ in pieces], "types": [t for *_, t in pieces]}
    else:
        data = json.load(open(path))["data"]
    golden = {"data": data}
    for prefix in (False, True):
        sp = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(data["tokens"], data["scores"], data["types"], 0, prefix))
        golden["with_prefix" if prefix else "plain"] = [sp.encode(s) for s in strings]
    json.dump(golden, open(path, "w"), ensure_ascii=False, separators=(",", ":"))

def read_gguf(path):
    data = open(path, "rb").read(64 << 20)
    at = 8
    def take(code):
        nonlocal at
        value, = struct.unpack_from("<" + code, data, at)
        at += struct.calcsize(code)
        return value
    def text():
        nonlocal at
        size = take("Q"); at += size
        return data[at - size:at].decode()
    def value(kind):
        if kind == 8: return text()
        if kind == 9:
            inner, count = take("I"), take("Q")
            return [value(inner) for _ in range(count)]
        return take({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])
    take("Q")
    keys = {}
    for _ in range(take("Q")):
        key = text(); keys[key] = value(take("I"))
    return keys

def gemma_goldens(gguf, rows, strings):
    keys = read_gguf(gguf)
    tokens, scores, types = (keys["tokenizer.ggml." + k] for k in ("tokens", "scores", "token_type"))
    sp = sentencepiece.SentencePieceProcessor(
        model_proto=sentencepiece_model(tokens, scores, types, keys["tokenizer.ggml.unknown_token_id"], keys["tokenizer.ggml.add_space_prefix"]))
    prompts = [{"text": r["prompt"], "ids": r["prompt_tokens"]} for r in json.load(open(rows))["rows"]]
    json.dump({"prompts": prompts, "plain": [sp.encode(s) for s in strings]}, open(os.path.join(GOLDEN, "gemma3.json"), "w"), separators=(",", ":"))

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gemma"); parser.add_argument("--llama-rows"); parser.add_argument("--retrain", action="store_true")
    args = parser.parse_args()
    strings = json.load(open(os.path.join(GOLDEN, "strings.json")))["strings"]
    some = strings[:44] + strings[44::4]  # the sentences, and a part of the rest
    os.makedirs(HF, exist_ok=True)
    json.dump(some, open(os.path.join(HF, "strings.json"), "w"), ensure_ascii=False, separators=(",", ":"))
    for name, family in FAMILIES.items():
        path = os.path.join(HF, name + ".tokenizer.json")
        if args.retrain or not os.path.exists(path):
            open(path, "w").write(make(name, family))
        golden = expected(Tokenizer.from_file(path), some, family["model"] == "unigram")
        json.dump(golden, open(os.path.join(HF, name + ".golden.json"), "w"), ensure_ascii=False, separators=(",", ":"))
        print(name, os.path.getsize(path), os.path.getsize(os.path.join(HF, name + ".golden.json")))
    pre_tokenizer_goldens(strings)
    chat_goldens()
    spm_goldens(some, args.retrain)
    if args.gemma:
        gemma_goldens(args.gemma, args.llama_rows, strings)

if __name__ == "__main__":
    main()
