"""Train an aggregator to match captions of a picture: `python torch_loop.py MODEL CAPTIONS STEPS`."""

import sys
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

import polypool as pp

read = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModel.from_pretrained(sys.argv[1]).eval().requires_grad_(False)
lines = Path(sys.argv[2]).read_text().splitlines()  # five captions per picture
texts = [line.partition("\t")[2] for line in lines]
tokens = [read(texts[k:320:5], padding=True, return_tensors="pt") for k in (0, 1)]
sets = [(model(**of).last_hidden_state, of["attention_mask"].bool()) for of in tokens]
pool, similarity = pp.aggregator("map", model.config.hidden_size), pp.part("similarity", "cosine")
objective, optimiser = pp.part("objective", "infonce"), torch.optim.AdamW(pool.parameters(), lr=1e-3)
for _ in range(int(sys.argv[3])):
    sim_VT = similarity(*(torch.nn.functional.normalize(pool(*of).vectors) for of in sets))
    loss = objective(sim_VT, torch.arange(64), torch.eye(64, dtype=torch.bool), epoch=0.0)["loss"]
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    print(f"{loss:.3f}")
