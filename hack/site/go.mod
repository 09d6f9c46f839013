module github.com/weir-dev/weir/hack/site

go 1.26.0

require github.com/yuin/goldmark v1.8.7
