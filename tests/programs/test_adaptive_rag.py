def test_first(make_rag):
    bench = make_rag()
    a = bench.ask("退货要几天")
    print(a.model_dump_json()[:600])
    assert a.status == "answered"
