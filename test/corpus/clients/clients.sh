#!/bin/sh
# Sends the cases with curl, wget or HTTPie: clients.sh <program> <address> <file of cases>
program=$1 base=$2
tab=$(printf '\t')
while IFS=$tab read -r format n id text url; do
	to=$base/$format/$n
	json="{\"name\": \"plain\", \"id\": \"$id\", \"url\": \"$url\", \"items\": [{\"id\": 7}]}"
	if [ "$program" = httpie ] && [ "$n" -ge 8 ]; then continue; fi # it starts slowly
	# wget escapes a URL, but no form.
	if [ "$program-$format" = wget-form ] && printf %s "$id" | LC_ALL=C grep -q '[^!-~]'; then continue; fi
	case $program-$format in
	curl-query) curl -s -G "$to" --data-urlencode "name=$text" --data-urlencode "id=$id" --data-urlencode "url=$url" ;;
	curl-nested-query) curl -s -g -G "$to" --data-urlencode "order[name]=$text" --data-urlencode "order[id]=$id" ;;
	curl-form) curl -s "$to" --data-urlencode "name=$text" --data-urlencode "id=$id" --data-urlencode "url=$url" ;;
	curl-nested-form) curl -s "$to" --data-urlencode "order[name]=$text" --data-urlencode "order[id]=$id" -d page=2 ;;
	curl-json) curl -s "$to" -H 'Content-Type: application/json' -d "$json" ;;
	curl-cookie) curl -s "$to" -b "theme=dark; cart_id=$id" ;;
	curl-header) curl -s "$to" -H "X-Order: $id" -F "name=$text" -F "id=x" ;;
	curl-path) curl -s -X POST "$to/$(printf %s "$id" | jq -sRr @uri)" ;;
	wget-query) wget -q -O - "$to?page=2&id=$id" ;;
	wget-form) wget -q -O - --post-data "name=plain&id=$id&page=2" "$to" ;;
	wget-json) wget -q -O - --header 'Content-Type: application/json' --post-data "$json" "$to" ;;
	wget-cookie) wget -q -O - --header "Cookie: theme=dark; cart_id=$id" "$to" ;;
	wget-header) wget -q -O - --header "X-Order: $id" --post-data '' "$to" ;;
	wget-path) wget -q -O - --post-data '' "$to/$id" ;;
	httpie-query) http --ignore-stdin -b GET "$to" "name==$text" "id==$id" "url==$url" ;;
	httpie-form) http --ignore-stdin -b -f POST "$to" "name=$text" "id=$id" "url=$url" ;;
	httpie-json) http --ignore-stdin -b POST "$to" "name=$text" "id=$id" "url=$url" ;;
	esac >/dev/null </dev/null
done <"$3"
