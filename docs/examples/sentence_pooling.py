"""Train a sentence transformer whose tokens GPO pools: `python sentence_pooling.py MODEL CAPTIONS OUT STEPS`."""

import sys
from pathlib import Path

import sentence_transformers as st
from datasets import Dataset
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Transformer

from polypool.integrations.sentence_transformers import Pooling

lines = Path(sys.argv[2]).read_text().splitlines()  # five captions per picture
texts = [line.partition("\t")[2] for line in lines]
pairs = Dataset.from_dict({"anchor": texts[::5], "positive": texts[1::5]})
transformer = Transformer(sys.argv[1])
pooling = Pooling("gpo", transformer.get_embedding_dimension())
model = st.SentenceTransformer(modules=[transformer, pooling], device="cpu")
arguments = st.SentenceTransformerTrainingArguments(
    sys.argv[3], max_steps=int(sys.argv[4]), save_strategy="no"
)
loss = MultipleNegativesRankingLoss(model)
st.SentenceTransformerTrainer(model, arguments, train_dataset=pairs, loss=loss).train()
model.save(sys.argv[3])  # or model.push_to_hub("user/name")
