"""Made-up logs in the formats that people have, one small file of each."""

import json

HOUR = "2024-05-01T10:00:"


def lines(*records):
    """JSON lines."""
    return "".join(json.dumps(record) + "\n" for record in records)


def openai(session, at, prompt, output, cached=None, **more):
    """A record of a request log, usage as OpenAI's chat completions have it."""
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    details = None if cached is None else {"cached_tokens": cached, "audio_tokens": 0}
    usage["prompt_tokens_details"] = details
    return {"session_id": session, "timestamp": at, "usage": usage, **more}


def mooncake(at_ms, prompt, output, ids):
    """A record of a Mooncake trace."""
    return {"timestamp": at_ms, "input_length": prompt, "output_length": output, "hash_ids": ids}


def bailian(chat, parent, turn, at, prompt, output, ids=()):
    """A record of a Bailian trace."""
    return {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": at,
        "input_length": prompt,
        "output_length": output,
        "type": "text",
        "turn": turn,
        "hash_ids": list(ids),
    }


BURST = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
)

LOGS = {
    "tidy": "session_id,turn,arrival_s,input_tokens,output_tokens\na,0,0,10,5\na,1,9,20,6\n",
    "requests": lines(
        openai("a", f"{HOUR}00Z", 100, 20),
        openai("b", f"{HOUR}01Z", 50, 5),
        openai("a", f"{HOUR}30Z", 150, 30, cached=112),
    ),
    "mooncake": lines(
        mooncake(0, 1500, 100, [0, 1, 2]),
        mooncake(0, 1100, 10, [0, 9, 10]),
        mooncake(27000, 1700, 50, [0, 1, 3, 4]),
    ),
    "bailian": lines(
        bailian(7, -1, 1, 0.5, 40, 8, [1, 2, 3]),
        bailian(8, -1, 1, 1.0, 33, 9, [1, 5, 6]),
        bailian(9, 7, 2, 4.0, 60, 3, [1, 2, 7, 8]),
    ),
    "burstgpt": f"{BURST}\n"
    "5.0,x-1,2,ChatGPT,100,20,120,Conversation log\n"
    "6.0,,1,GPT-4,70,3,73,API log\n"
    "45.0,x-1,3,ChatGPT,180,30,210,Conversation log\n",
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:04.0319600,3180,8\n",
}
"""A file of each format, by its name."""
