"""Calls a polyhead server with clients of LangChain, LlamaIndex, Cohere and Hugging Face, unmodified.

    python retrieval_calls.py URL TOKEN <GIVEN >GOT

Runs in an environment of its own; `tests/interop/test_retrieval.py` starts it against a server with one
embedder and one reranker that asks for the token, gives it a query and texts in JSON, of which the last is
too long, and looks at what it prints.
"""

import asyncio
import json
import sys
from typing import Any

import cohere
from huggingface_hub import AsyncInferenceClient, InferenceClient
from langchain_cohere import CohereRerank
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from langchain_openai import OpenAIEmbeddings
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.cohere_rerank import CohereRerank as CoherePostprocessor
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

URL, TOKEN = sys.argv[1:]
EMBEDDER, RERANKER = "tiny-tokens", "reranker"
TOP = 2


def langchain_embedders() -> dict[str, Embeddings]:
    """LangChain's embedders; the last cannot cut texts that are too long."""
    hub = HuggingFaceEndpointEmbeddings(model=EMBEDDER, model_kwargs={"truncate": True})
    # It takes no URL, but other clients.
    hub.client = InferenceClient(model=f"{URL}/embed", token=TOKEN)
    hub.async_client = AsyncInferenceClient(model=f"{URL}/embed", token=TOKEN)
    # By default it sends the ids of OpenAI's tokenizer.
    options: dict[str, Any] = {
        "check_embedding_ctx_length": False,
        "model_kwargs": {"extra_body": {"truncate": True}},
    }
    openai = OpenAIEmbeddings(model=EMBEDDER, base_url=f"{URL}/v1", api_key=TOKEN, **options)
    return {"hub": hub, "openai": openai}


async def langchain_embeds(embedder: Embeddings, query: str, texts: list[str]) -> list[list[list[float]]]:
    """Embed in every way."""
    return [
        [embedder.embed_query(query), *embedder.embed_documents(texts)],
        [await embedder.aembed_query(query), *await embedder.aembed_documents(texts)],
    ]


async def llama_index_embeds(query: str, texts: list[str]) -> list[list[list[float]]]:
    """Embed in every way with LlamaIndex's embedder."""
    one = TextEmbeddingsInference(model_name=EMBEDDER, base_url=URL, auth_token=TOKEN)
    return [
        [one.get_query_embedding(query), *one.get_text_embedding_batch(texts)],
        [await one.aget_query_embedding(query), *await one.aget_text_embedding_batch(texts)],
    ]


def langchain_ranks(query: str, texts: list[str]) -> list[tuple[str, float]]:
    """Rank with LangChain's reranker."""
    one = CohereRerank(model=RERANKER, base_url=URL, cohere_api_key=TOKEN, top_n=TOP)
    documents = [Document(text) for text in texts]
    every = one.rerank(documents, query, top_n=None)
    best = one.compress_documents(documents, query)
    ranked = [(found.page_content, found.metadata["relevance_score"]) for found in best]
    assert ranked == [(texts[found["index"]], found["relevance_score"]) for found in every[:TOP]]
    assert len(every) == len(texts)
    try:
        one.rerank(documents, query, model="nothing")
    except cohere.NotFoundError as error:
        assert "nothing" in error.body["message"]  # noqa: PT017 - pytest is not here
    else:
        raise AssertionError
    return ranked


def llama_index_ranks(reranker: Any, query: str, texts: list[str]) -> list[tuple[str, float]]:
    """Rank with one of LlamaIndex's rerankers."""
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
    return [(found.text, found.score) for found in reranker.postprocess_nodes(nodes, query_str=query)]


def hub(query: str, texts: list[str]) -> dict[str, Any]:
    """Call with Hugging Face's client, which sends `parameters` with all that it has no other way for."""

    def client(path: str, **headers: str) -> InferenceClient:
        return InferenceClient(model=URL + path, token=TOKEN, headers=headers)

    first, *_ = client(f"/predict?model={RERANKER}").text_classification(query, top_k=1)
    (again,) = client("/", **{"x-polyhead-model": RERANKER}).text_classification(query)
    assert first == again
    vectors = client("/").feature_extraction(texts[:-1], prompt_name="query", truncation_direction="right")
    return {
        "label": [first.label, first.score],
        "similar": client("/similarity").sentence_similarity(query, other_sentences=texts[:-1]),
        "root": vectors.tolist(),
    }


def cohere_ranks(query: str, texts: list[str]) -> list[tuple[str, float]]:
    """Rank with Cohere's own client, and what haystack's component adds by default."""
    client = cohere.ClientV2(TOKEN, base_url=URL)
    reply = client.rerank(model=RERANKER, query=query, documents=texts, top_n=TOP, max_tokens_per_doc=4096)
    return [(texts[one.index], one.relevance_score) for one in reply.results]


def main() -> None:
    """Make every call."""
    query, *texts = json.load(sys.stdin)
    embeds = {
        name: asyncio.run(langchain_embeds(embedder, query, texts))
        for name, embedder in langchain_embedders().items()
    }
    embeds["llama index"] = asyncio.run(llama_index_embeds(query, texts))
    by_cohere = CoherePostprocessor(model=RERANKER, base_url=URL, api_key=TOKEN, top_n=TOP)
    ranks = {
        "langchain": langchain_ranks(query, texts),
        "llama index": llama_index_ranks(by_cohere, query, texts),
        "cohere": cohere_ranks(query, texts),
    }
    # This one neither asks for long texts to be cut, nor writes "Bearer" itself.
    by_tei = TextEmbeddingInference(base_url=URL, auth_token=f"Bearer {TOKEN}", top_n=TOP)
    short = llama_index_ranks(by_tei, query, texts[:-1])
    others = hub(query, texts)
    json.dump({"embeds": embeds, "ranks": ranks, "short": short, "hub": others}, sys.stdout)


main()
