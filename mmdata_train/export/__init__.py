"""Out of a checkpoint of any layout: Hugging Face folders, PEFT adapters, merged models.

origin: what a checkpoint says of the model, tokenizer and template it was trained with. tensors: its weights one at a
time, under their Hugging Face names. stream: safetensors files written tensor by tensor. description: config.json and
generation_config.json. chat: tokenizer files, the template of training, tokens that end a turn. ollama: a Modelfile.
record: what makes a folder an export. command: all of it.
"""
