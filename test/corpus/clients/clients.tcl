# Sends the cases as Tcl's client writes them: tclsh clients.tcl <library> <address> <file of cases>
package require http
package require json::write
lassign $argv library base file
proc send {target {body {}} {headers {}} {type application/x-www-form-urlencoded}} {
    global base
    if {$body eq ""} {
        http::cleanup [http::geturl $base$target -headers $headers]
    } else {
        http::cleanup [http::geturl $base$target -headers $headers -type $type -query $body]
    }
}
set cases [open $file]
fconfigure $cases -encoding utf-8
while {[gets $cases line] >= 0} {
    lassign [split $line \t] format n id text url
    set path /$format/$n
    set fields [http::formatQuery name $text id $id url $url]
    set nested [http::formatQuery {order[name]} $text {order[id]} $id]
    set json [encoding convertto utf-8 [json::write object name [json::write string $text] id [json::write string $id]]]
    switch $format {
        query { send $path?$fields }
        nested-query { send $path?$nested }
        form { send $path $fields }
        nested-form { send $path $nested }
        json { send $path $json {} application/json }
        cookie { send $path {} [list Cookie "theme=dark; cart_id=[http::quoteString $id]"] }
        header { send $path $json [list X-Order $id] application/json }
        path { send $path/[http::quoteString $id]?$fields x {} text/plain }
    }
}
