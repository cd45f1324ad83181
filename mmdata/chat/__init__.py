"""Chat data: records -> messages -> token ids and the spans the loss counts.

formats, conversation, turns: which record is a conversation, its messages, whether its roles are in order.
templates, sandbox: the Jinja template and the sandbox it runs in. segments, traced, tracer, program: rendering that
knows which characters the template wrote and which came from a message, and replays that knowledge on the next record
of the same shape. spans: where each answer begins and ends. thinking, fit: what happens to reasoning and to
conversations that are too long. render: all of it for batches. pai: the row layout of Pai-Megatron-Patch.
"""
