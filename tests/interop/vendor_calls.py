"""Calls a polyhead server with what Haystack, LangChain, LlamaIndex and Voyage have for vendors, unmodified.

    python vendor_calls.py URL TOKEN <GIVEN >GOT

Runs as `retrieval_calls.py` does, with the clients of Cohere, Voyage, Jina and NVIDIA NIM.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import voyageai
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.embedders.jina import JinaTextEmbedder
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.jina import JinaRanker
from langchain_core.documents import Document as LangChainDocument
from langchain_nvidia_ai_endpoints import NVIDIAEmbeddings, NVIDIARerank
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.jinaai_rerank import JinaRerank

URL, TOKEN = sys.argv[1:]
V1 = f"{URL}/v1"
EMBEDDER, RERANKER = "tiny-tokens", "reranker"
TOP = 2
Ranked = list[tuple[str, float]]


def vectors(query: str, texts: Sequence[str]) -> Mapping[str, list[list[float]]]:
    """Embed what fits, without a prompt."""
    voyage = {"api_key": TOKEN, "base_url": V1}
    given = [query, *texts]
    jina = JinaTextEmbedder(
        model=EMBEDDER, api_key=Secret.from_token(TOKEN), base_url=f"{V1}/embeddings", late_chunking=False
    )
    return {
        "voyage": voyageai.Client(**voyage).embed(given, EMBEDDER).embeddings,
        "voyage, async": asyncio.run(voyageai.AsyncClient(**voyage).embed(given, EMBEDDER)).embeddings,
        "jina": [jina.run(text)["embedding"] for text in given],
    }


def prompted(query: str, texts: list[str]) -> Mapping[str, list[list[float]]]:
    """Embed the query as a query, and texts, of which one is too long, as passages."""
    nvidia = NVIDIAEmbeddings(model=EMBEDDER, base_url=V1, api_key=TOKEN, truncate="END")
    voyage = voyageai.Client(api_key=TOKEN, base_url=V1)
    return {
        "nvidia": [nvidia.embed_query(query), *nvidia.embed_documents(texts)],
        "nvidia, async": [
            asyncio.run(nvidia.aembed_query(query)),
            *asyncio.run(nvidia.aembed_documents(texts)),
        ],
        "voyage": [
            *voyage.embed([query], EMBEDDER, input_type="query").embeddings,
            *voyage.embed(texts, EMBEDDER, input_type="document").embeddings,
        ],
    }


def ranks(query: str, texts: Sequence[str]) -> Mapping[str, Ranked]:
    """Rank texts, of which one is too long."""
    secret = Secret.from_token(TOKEN)
    cohere = CohereRanker(model=RERANKER, api_key=secret, api_base_url=URL, top_k=TOP)
    jina = JinaRanker(model=RERANKER, api_key=secret, base_url=f"{V1}/rerank", top_k=TOP)
    jina_of_nodes = JinaRerank(model=RERANKER, api_key=TOKEN, base_url=V1, top_n=TOP)
    voyage = {"api_key": TOKEN, "base_url": V1}
    documents = [Document(content=text) for text in texts]
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]

    def by_haystack(run: Callable[..., Any]) -> Ranked:
        return [(one.content, one.score) for one in run(query=query, documents=documents)["documents"]]

    def by_voyage(reply: Any) -> Ranked:
        return [(one.document, one.relevance_score) for one in reply.results]

    call = (query, list(texts), RERANKER, TOP)
    return {
        "cohere": by_haystack(cohere.run),
        "cohere, async": by_haystack(lambda **given: asyncio.run(cohere.run_async(**given))),
        "jina": by_haystack(jina.run),
        "jina, nodes": [
            (one.text, one.score) for one in jina_of_nodes.postprocess_nodes(nodes, query_str=query)
        ],
        "voyage": by_voyage(voyageai.Client(**voyage).rerank(*call)),
        "voyage, async": by_voyage(asyncio.run(voyageai.AsyncClient(**voyage).rerank(*call))),
    }


def logits(query: str, texts: Sequence[str]) -> Mapping[str, Ranked]:
    """Rank by NIM's scores, which are logits."""
    nvidia = NVIDIARerank(model=RERANKER, base_url=V1, api_key=TOKEN, top_n=TOP, truncate="END")
    documents = [LangChainDocument(text) for text in texts]
    found = {
        "nvidia": nvidia.compress_documents(documents, query),
        "nvidia, async": asyncio.run(nvidia.acompress_documents(documents, query)),
    }
    return {
        name: [(one.page_content, one.metadata["relevance_score"]) for one in of]
        for name, of in found.items()
    }


def main() -> None:
    """Make every call."""
    query, *texts = json.load(sys.stdin)
    got = {
        "vectors": vectors(query, texts[:-1]),
        "prompted": prompted(query, texts),
        "ranks": ranks(query, texts),
        "logits": logits(query, texts),
    }
    json.dump(got, sys.stdout)


main()
