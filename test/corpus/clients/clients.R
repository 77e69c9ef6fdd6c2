# Sends the cases as R's client writes them: Rscript clients.R <library> <address> <file of cases>
library(curl)
args <- commandArgs(TRUE)
escape <- function(text) curl_escape(enc2utf8(text))
send <- function(target, body = NULL, ...) {
  handle <- new_handle()
  if (!is.null(body)) handle_setopt(handle, copypostfields = enc2utf8(body))
  handle_setheaders(handle, ...)
  curl_fetch_memory(paste0(args[2], target), handle)
}
for (line in readLines(args[3], encoding = "UTF-8")) {
  case <- strsplit(line, "\t", fixed = TRUE)[[1]]
  path <- paste0("/", case[1], "/", case[2])
  id <- case[3]
  fields <- paste0("name=", escape(case[4]), "&id=", escape(id), "&url=", escape(case[5]))
  nested <- paste0("order%5Bname%5D=", escape(case[4]), "&order%5Bid%5D=", escape(id))
  json <- as.character(jsonlite::toJSON(list(name = case[4], id = id, url = case[5], items = list(list(id = 7))), auto_unbox = TRUE))
  switch(case[1],
    "query" = send(paste0(path, "?", fields)),
    "nested-query" = send(paste0(path, "?", nested)),
    "form" = send(path, fields),
    "nested-form" = send(path, nested),
    "json" = send(path, json, "Content-Type" = "application/json"),
    "cookie" = send(path, NULL, "Cookie" = paste0("theme=dark; cart_id=", escape(id))),
    "header" = send(path, json, "Content-Type" = "application/json", "X-Order" = id),
    "path" = send(paste0(path, "/", escape(id), "?", fields), ""))
}
