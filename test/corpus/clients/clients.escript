%% Sends the cases as Erlang's client writes them: escript clients.escript <library> <address> <file of cases>
main([_, Base, File]) ->
    {ok, _} = application:ensure_all_started(inets),
    {ok, Text} = file:read_file(File),
    [send(Base, string:split(Line, "\t", all)) || Line <- string:split(string:trim(Text), "\n", all)].

send(Base, [Format, N, Id, Name, Url]) ->
    To = Base ++ "/" ++ binary_to_list(Format) ++ "/" ++ binary_to_list(N),
    Fields = query([{"name", Name}, {"id", Id}, {"url", Url}]),
    Nested = query([{"order[name]", Name}, {"order[id]", Id}]),
    case Format of
        <<"query">> -> get(To ++ "?" ++ Fields, []);
        <<"nested-query">> -> get(To ++ "?" ++ Nested, []);
        <<"form">> -> post(To, [], Fields);
        <<"nested-form">> -> post(To, [], Nested);
        <<"json">> -> ok;
        <<"cookie">> -> get(To, [{"cookie", "theme=dark; cart_id=" ++ quote(Id)}]);
        <<"header">> -> post(To, [{"X-Order", binary_to_list(Id)}], Fields);
        <<"path">> -> post(To ++ "/" ++ quote(Id) ++ "?" ++ Fields, [], "")
    end.

quote(Text) -> binary_to_list(uri_string:quote(Text)).
query(Pairs) -> binary_to_list(iolist_to_binary(uri_string:compose_query([{unicode:characters_to_binary(K), V} || {K, V} <- Pairs]))).
get(Url, Headers) -> httpc:request(get, {Url, Headers}, [], []).
post(Url, Headers, Body) -> httpc:request(post, {Url, Headers, "application/x-www-form-urlencoded", Body}, [], []).
