"""llama.cpp, through llama-cpp-python's class Llama, which has one sequence. Batches of a decode step are measured by llama.cpp's own program
llama-batched-bench, if it is on the PATH: it samples nothing, so its steps have less to do. The model is a GGUF file; llama.cpp computes in the
types of the file, whatever --dtype is."""
import itertools
import json
import shutil
import subprocess

PACKAGE, PIP = "llama_cpp", "llama-cpp-python"
BATCHED = False


class Peer:
    def __init__(self, options):
        import llama_cpp
        self.options, self.version = options, f"llama-cpp-python {llama_cpp.__version__}"
        self.llama = llama_cpp.Llama(options.model, n_ctx=options.context_length, n_batch=512, n_threads=options.threads,
                                     n_threads_batch=options.threads, n_gpu_layers=-1 if options.device == "cuda" else 0, verbose=False)

    def generate(self, requests, temperature):
        counts = []
        for prompt, max_tokens in requests:
            self.llama.reset()  # nothing of an earlier prompt is used again
            tokens = self.llama.generate(prompt, top_k=0, top_p=1.0, min_p=0.0, temp=temperature, repeat_penalty=1.0)
            counts.append(sum(1 for _ in itertools.islice(tokens, max_tokens)))  # it goes on after end tokens
        return counts

    def decode_step_us(self, batch, prompt_length, num_tokens):
        """None: the program is not there, or has no room."""
        program = shutil.which("llama-batched-bench")
        if program is None:
            return None
        of_sequence = -(-(prompt_length + num_tokens) // 256) * 256  # llama.cpp rounds a sequence's cache, in some versions down
        command = [program, "-m", self.options.model, "-c", str(batch * of_sequence), "-npp", str(prompt_length), "-ntg", str(num_tokens),
                   "-npl", str(batch), "-t", str(self.options.threads), "-ngl", "99" if self.options.device == "cuda" else "0",
                   "--output-format", "jsonl"]
        output = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout
        rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        seconds = [row["t_tg"] for row in rows if row["pl"] == batch]
        return 1e6 * seconds[0] / num_tokens if seconds else None
